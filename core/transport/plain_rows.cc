// Bodies of rows.
#include "transport/plain_rows.h"

#include <cstring>
#include <string_view>

#include "transport/messages.h"

namespace sparsefleet {
namespace {

void PutRowsHead(BodyWriter& out, std::string_view table, std::uint64_t num_keys,
                 std::uint64_t num_values, std::uint64_t num_state, std::uint64_t num_counters) {
  out.PutString(table);
  out.Put(num_keys);
  out.Put(num_values);
  out.Put(num_state);
  out.Put(num_counters);
  out.Pad();
}

constexpr std::size_t kPlainRowsHeadBytes = 40;  // PutRowsHead() without a name

}  // namespace

Body EncodeRows(std::string_view table, const RowBatch& rows, bool bf16) {
  BodyWriter out;
  PutRowsHead(out, table, rows.keys.size(), rows.values.size(), rows.state.size(),
              rows.counters.size());
  out.PutArray(std::span<const Key>(rows.keys));
  if (bf16) {
    std::vector<Bf16> narrow(rows.values.size());
    BestBf16().narrow(narrow.data(), rows.values.data(), rows.values.size());
    out.PutArray(std::span<const Bf16>(narrow));
  } else {
    out.PutArray(std::span<const float>(rows.values));
  }
  out.PutArray(std::span<const float>(rows.state));
  out.PutArray(std::span<const std::uint32_t>(rows.counters));
  return out.Take();
}

std::size_t PlainRowsBytes(std::size_t num_keys, std::size_t dim) {
  const std::size_t bytes = kPlainRowsHeadBytes + num_keys * (sizeof(Key) + dim * sizeof(float));
  return (bytes + 7) & ~std::size_t{7};
}

std::span<float> PutPlainRows(std::span<const Key> keys, std::size_t dim,
                              std::span<std::byte> body) {
  const std::size_t num_values = keys.size() * dim;
  BodyWriter head;
  PutRowsHead(head, "", keys.size(), num_values, 0, 0);
  std::byte* at = body.data();
  std::memcpy(at, head.bytes().data(), kPlainRowsHeadBytes);
  at += kPlainRowsHeadBytes;
  if (!keys.empty()) std::memcpy(at, keys.data(), keys.size_bytes());
  at += keys.size_bytes();
  if (num_values % 2 != 0) std::memset(at + num_values * sizeof(float), 0, sizeof(float));
  return {reinterpret_cast<float*>(at), num_values};
}

Result<NamedRows> DecodeRows(std::span<const std::byte> body, bool bf16) {
  BodyReader in(body);
  const std::string_view table = in.GetString(kMaxTableNameBytes);
  const auto num_keys = in.Get<std::uint64_t>();
  const auto num_values = in.Get<std::uint64_t>();
  const auto num_state = in.Get<std::uint64_t>();
  const auto num_counters = in.Get<std::uint64_t>();
  const auto keys = in.GetArray<Key>(num_keys);
  const auto narrow = in.GetArray<Bf16>(bf16 ? num_values : 0);
  const auto values = in.GetArray<float>(bf16 ? 0 : num_values);
  const auto state = in.GetArray<float>(num_state);
  const auto counters = in.GetArray<std::uint32_t>(num_counters);
  if (Status s = in.Finish("rows"); !s.ok()) return s;
  NamedRows named;
  named.table = table;
  named.rows.keys.assign(keys.begin(), keys.end());
  named.rows.values.assign(values.begin(), values.end());
  if (bf16) {
    named.rows.values.resize(narrow.size());
    BestBf16().widen(named.rows.values.data(), std::as_bytes(narrow).data(), narrow.size());
  }
  named.rows.state.assign(state.begin(), state.end());
  named.rows.counters.assign(counters.begin(), counters.end());
  return named;
}

}  // namespace sparsefleet
