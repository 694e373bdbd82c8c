#include "table/dump.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <new>
#include <optional>
#include <string_view>
#include <vector>

#include "table/dump_file.h"

namespace sparsefleet {
namespace {

constexpr std::size_t kMaxStem = 180;
constexpr std::size_t kCutStem = 160;
constexpr std::string_view kSuffix = ".sfd";

std::string Hex(std::uint64_t number, int digits) {
  std::string text;
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) {
    text += "0123456789ABCDEF"[number >> shift & 0xf];
  }
  return text;
}

// The table's name as the beginning of a file name.
std::string StemOf(std::string_view name) {
  std::string stem;
  std::uint64_t hash = 0;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '_' || c == '-';
    if (plain) {
      stem += c;
    } else {
      stem.append("%").append(Hex(byte, 2));
    }
    hash = Mix64(hash ^ byte);
  }
  if (stem.size() <= kMaxStem) return stem;
  return stem.substr(0, kCutStem) + "~" + Hex(hash, 16);
}

std::string FileName(std::string_view table, std::uint32_t index, std::uint32_t num_servers) {
  return StemOf(table) + "." + std::to_string(index) + "-of-" + std::to_string(num_servers) +
         std::string(kSuffix);
}

std::string Join(const std::string& directory, const std::string& file) {
  return (std::filesystem::path(directory) / file).string();
}

DumpHeader HeaderOf(const SparseTable& table) {
  const SparseSpec& spec = table.spec();
  DumpHeader header;
  header.optimizer = static_cast<std::uint8_t>(spec.optimizer.kind);
  header.counters = static_cast<std::uint8_t>((spec.keeps_count() ? kDumpCount : 0) |
                                              (spec.keeps_step() ? kDumpStep : 0) |
                                              (spec.keeps_seconds() ? kDumpSeconds : 0));
  header.dim = table.dim();
  header.state_dim = table.state_dim();
  header.name = spec.name;
  return header;
}

DumpHeader HeaderOf(const DenseTable& table) {
  DumpHeader header;
  header.dense = true;
  header.optimizer = static_cast<std::uint8_t>(table.spec().optimizer.kind);
  header.state_dim = table.state_dim();
  header.size = table.spec().size;
  header.begin = table.range().begin;
  header.end = table.range().end;
  header.name = table.spec().name;
  return header;
}

Status WriteRows(SparseTable& table, DumpWriter& writer) {
  TableCut cut = table.OpenCut();
  RowBatch rows;
  while (cut.Next(writer.rows_per_block(), rows)) {
    if (Status status = writer.Write(rows); !status.ok()) return status;
  }
  return writer.Finish();
}

Status WriteRows(const DenseTable& table, DumpWriter& writer) {
  RowBatch block;
  for (std::uint64_t at = 0; at < table.size();) {
    const std::uint64_t count = std::min(writer.rows_per_block(), table.size() - at);
    block.values.resize(count);
    block.state.resize(count * table.state_dim());
    Status status = table.ReadWithState(at, block.values, block.state);
    if (status.ok()) status = writer.Write(block);
    if (!status.ok()) return status;
    at += count;
  }
  return writer.Finish();
}

template <typename Table>
Result<DumpWriter> SaveTable(Table& table, const std::string& directory, std::uint32_t index,
                             std::uint32_t num_servers) {
  DumpHeader header = HeaderOf(table);
  header.index = index;
  header.num_servers = num_servers;
  const std::string path = Join(directory, FileName(header.name, index, num_servers));
  auto writer = DumpWriter::Create(path, std::move(header));
  if (!writer.ok()) return writer;
  if (Status status = WriteRows(table, writer.value()); !status.ok()) return status;
  return writer;
}

Status CheckPlace(std::uint32_t index, std::uint32_t num_servers) {
  if (index < num_servers) return Status::Ok();
  return {Code::kInvalidArgument, "server index must be below the number of servers, got " +
                                      std::to_string(index) + " of " + std::to_string(num_servers)};
}

// Parses "<index>-of-<num_servers>".
std::optional<std::pair<std::uint32_t, std::uint32_t>> ParsePlace(std::string_view text) {
  std::uint32_t index = 0;
  std::uint32_t num_servers = 0;
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, index);
  constexpr std::string_view kOf = "-of-";
  if (first.ec != std::errc() || !std::string_view(first.ptr, end - first.ptr).starts_with(kOf)) {
    return std::nullopt;
  }
  const auto second = std::from_chars(first.ptr + kOf.size(), end, num_servers);
  if (second.ec != std::errc() || second.ptr != end) return std::nullopt;
  return std::pair(index, num_servers);
}

// The paths of a table's files, by index; an error unless they are one complete set.
Result<std::vector<std::string>> FindFiles(const std::string& directory, const std::string& table) {
  const std::string prefix = StemOf(table) + ".";
  std::map<std::uint32_t, std::string> found;
  std::optional<std::uint32_t> num_servers;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string file = entry->path().filename().string();
    if (!file.starts_with(prefix) || !file.ends_with(kSuffix)) continue;
    const auto place = ParsePlace(std::string_view(file).substr(
        prefix.size(), file.size() - std::min(file.size(), prefix.size() + kSuffix.size())));
    if (!place) continue;
    if (num_servers.value_or(place->second) != place->second) {
      return Status(Code::kCorrupt, "'" + directory + "': table '" + table + "' has files of " +
                                        std::to_string(*num_servers) + " and of " +
                                        std::to_string(place->second) + " servers");
    }
    num_servers = place->second;
    found[place->first] = entry->path().string();
  }
  if (error) return Status(Code::kNotFound, "'" + directory + "': " + error.message());
  if (!num_servers) {
    return Status(Code::kNotFound,
                  "'" + directory + "': no dump of table '" + table + "' (" + prefix + "*.sfd)");
  }
  std::vector<std::string> paths;
  for (std::uint32_t i = 0; i < *num_servers; ++i) {
    const auto at = found.find(i);
    if (at == found.end()) {
      const std::string path = Join(directory, FileName(table, i, *num_servers));
      return Status(Code::kNotFound, "'" + path + "' is missing");
    }
    paths.push_back(at->second);
  }
  return paths;
}

Status Differs(const std::string& path, std::string_view field, std::uint64_t found,
               std::uint64_t wanted) {
  if (found == wanted) return Status::Ok();
  return {Code::kShapeMismatch, "'" + path + "': " + std::string(field) + " is " +
                                    std::to_string(found) + ", the table's is " +
                                    std::to_string(wanted)};
}

Status CheckHeader(const DumpReader& reader, const DumpHeader& wanted, std::size_t index,
                   std::size_t num_servers) {
  const DumpHeader& found = reader.header();
  const std::string& path = reader.path();
  if (found.name != wanted.name || found.index != index || found.num_servers != num_servers) {
    return {Code::kCorrupt, "'" + path + "' was written as part " + std::to_string(found.index) +
                                " of " + std::to_string(found.num_servers) + " of table '" +
                                found.name + "'"};
  }
  Status status =
      Differs(path, "kind (0 sparse, 1 dense)", found.dense ? 1 : 0, wanted.dense ? 1 : 0);
  if (status.ok()) status = Differs(path, "width", found.dim, wanted.dim);
  if (status.ok()) status = Differs(path, "optimizer kind", found.optimizer, wanted.optimizer);
  if (status.ok()) status = Differs(path, "state width", found.state_dim, wanted.state_dim);
  if (status.ok()) status = Differs(path, "set of counters", found.counters, wanted.counters);
  if (status.ok()) status = Differs(path, "size", found.size, wanted.size);
  return status;
}

// Reads all files of a table once, changing nothing.
Status VerifyFiles(const std::vector<std::string>& paths, const DumpHeader& wanted) {
  std::uint64_t elements = 0;
  RowBatch block;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    auto reader = DumpReader::Open(paths[i]);
    if (!reader.ok()) return reader.status();
    if (Status status = CheckHeader(reader.value(), wanted, i, paths.size()); !status.ok()) {
      return status;
    }
    const DumpHeader& header = reader.value().header();
    std::uint64_t rows = 0;
    for (;;) {
      const auto more = reader.value().Next(block);
      if (!more.ok()) return more.status();
      if (!more.value()) break;
      rows += block.values.size() / header.dim;
    }
    if (!header.dense) continue;
    const bool empty = rows == 0 && header.begin == header.end;
    if (!empty && (header.begin != elements || header.end - header.begin != rows)) {
      return {Code::kCorrupt, "'" + paths[i] + "': holds " + std::to_string(rows) +
                                  " elements from " + std::to_string(header.begin) +
                                  ", wanted a range from " + std::to_string(elements)};
    }
    elements += rows;
  }
  if (!wanted.dense || elements == wanted.size) return Status::Ok();
  return {Code::kCorrupt, "table '" + wanted.name + "': the dump holds " +
                              std::to_string(elements) + " of " + std::to_string(wanted.size) +
                              " elements"};
}

// Keeps the rows that are owned by this server.
void KeepOwned(RowBatch& rows, const DumpHeader& shape, std::uint32_t index,
               std::uint32_t num_servers) {
  const std::size_t counter_dim = rows.keys.empty() ? 0 : rows.counters.size() / rows.keys.size();
  std::size_t kept = 0;
  const auto keep = [&kept](auto& items, std::size_t from, std::size_t width) {
    std::copy_n(items.begin() + from * width, width, items.begin() + kept * width);
  };
  for (std::size_t i = 0; i < rows.keys.size(); ++i) {
    if (OwnerOf(rows.keys[i], num_servers) != index) continue;
    keep(rows.keys, i, 1);
    keep(rows.values, i, shape.dim);
    keep(rows.state, i, shape.state_dim);
    keep(rows.counters, i, counter_dim);
    ++kept;
  }
  rows.keys.resize(kept);
  rows.values.resize(kept * shape.dim);
  rows.state.resize(kept * shape.state_dim);
  rows.counters.resize(kept * counter_dim);
}

Status ReadRows(SparseTable& table, const std::vector<std::string>& paths, std::uint32_t index,
                std::uint32_t num_servers) {
  table.Clear();
  RowBatch rows;
  for (const std::string& path : paths) {
    auto reader = DumpReader::Open(path);
    if (!reader.ok()) return reader.status();
    for (;;) {
      const auto more = reader.value().Next(rows);
      if (!more.ok()) return more.status();
      if (!more.value()) break;
      KeepOwned(rows, reader.value().header(), index, num_servers);
      if (Status status = table.Import(rows); !status.ok()) return status;
    }
  }
  return Status::Ok();
}

// Copies the part of a dense block, which begins at element `begin`, that lies in `range`.
void CopyOverlap(const RowBatch& block, std::uint64_t begin, const DenseRange& range,
                 std::vector<float>& values, std::vector<float>& state) {
  const std::uint64_t first = std::max(begin, range.begin);
  const std::uint64_t last = std::min(begin + block.values.size(), range.end);
  if (first >= last) return;
  const std::uint64_t from = first - begin;
  const std::uint64_t to = first - range.begin;
  std::copy_n(block.values.begin() + from, last - first, values.begin() + to);
  const std::uint64_t arrays = block.state.size() / block.values.size();
  for (std::uint64_t a = 0; a < arrays; ++a) {
    std::copy_n(block.state.begin() + a * block.values.size() + from, last - first,
                state.begin() + a * range.size() + to);
  }
}

Status ReadRows(DenseTable& table, const std::vector<std::string>& paths, std::uint32_t,
                std::uint32_t) {
  std::vector<float> values(table.size());
  std::vector<float> state(table.size() * table.state_dim());
  RowBatch block;
  for (const std::string& path : paths) {
    auto reader = DumpReader::Open(path);
    if (!reader.ok()) return reader.status();
    for (std::uint64_t at = reader.value().header().begin;;) {
      const auto more = reader.value().Next(block);
      if (!more.ok()) return more.status();
      if (!more.value()) break;
      CopyOverlap(block, at, table.range(), values, state);
      at += block.values.size();
    }
  }
  return table.WriteWithState(0, values, state);
}

// Calls visit(table) with the table of that name, of whichever kind it is.
template <typename Visit>
Status VisitTable(TableSet& tables, const std::string& name, Visit visit) {
  if (auto sparse = tables.Sparse(name); sparse.ok()) return visit(*sparse.value());
  auto dense = tables.Dense(name);
  if (!dense.ok()) return dense.status();
  return visit(*dense.value());
}

Status SaveAll(TableSet& tables, const std::string& directory, std::uint32_t index,
               std::uint32_t num_servers) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return {Code::kIo, "cannot create '" + directory + "': " + error.message()};
  std::vector<DumpWriter> writers;
  for (const std::string& name : tables.Names()) {
    const Status status = VisitTable(tables, name, [&](auto& table) {
      auto writer = SaveTable(table, directory, index, num_servers);
      if (writer.ok()) writers.push_back(std::move(writer).value());
      return writer.status();
    });
    if (!status.ok()) return status;
  }
  for (DumpWriter& writer : writers) {
    if (Status status = writer.Publish(); !status.ok()) return status;
  }
  return SyncDirectory(directory);
}

Status LoadAll(TableSet& tables, const std::string& directory, std::uint32_t index,
               std::uint32_t num_servers) {
  std::map<std::string, std::vector<std::string>> paths;
  for (const std::string& name : tables.Names()) {
    auto found = FindFiles(directory, name);
    if (!found.ok()) return found.status();
    const Status status = VisitTable(
        tables, name, [&](auto& table) { return VerifyFiles(found.value(), HeaderOf(table)); });
    if (!status.ok()) return status;
    paths[name] = std::move(found).value();
  }
  for (const auto& [name, files] : paths) {
    const Status status = VisitTable(tables, name, [&, &of_table = files](auto& table) {
      return ReadRows(table, of_table, index, num_servers);
    });
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

}  // namespace

Status SaveTables(TableSet& tables, const std::string& directory, std::uint32_t index,
                  std::uint32_t num_servers) {
  if (Status status = CheckPlace(index, num_servers); !status.ok()) return status;
  try {
    return SaveAll(tables, directory, index, num_servers);
  } catch (const std::bad_alloc&) {
    return {Code::kTooLarge, "out of memory while saving to '" + directory + "'"};
  }
}

Status LoadTables(TableSet& tables, const std::string& directory, std::uint32_t index,
                  std::uint32_t num_servers) {
  if (Status status = CheckPlace(index, num_servers); !status.ok()) return status;
  try {
    return LoadAll(tables, directory, index, num_servers);
  } catch (const std::bad_alloc&) {
    return {Code::kTooLarge, "out of memory while loading from '" + directory + "'"};
  }
}

}  // namespace sparsefleet
