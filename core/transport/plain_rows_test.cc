#include "transport/plain_rows.h"

#include <algorithm>
#include <vector>

#include "testing/check.h"
#include "transport/messages.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

const Test kSame("rows written in place equal encoded rows", [] {
  for (const std::size_t count : {0, 1, 2, 7}) {
    for (const std::size_t dim : {1, 2, 3, 10}) {
      RowBatch rows;
      for (std::size_t i = 0; i < count; ++i) rows.keys.push_back(~i);
      for (std::size_t i = 0; i < count * dim; ++i) rows.values.push_back(0.5F * i);
      std::vector<std::byte> body(PlainRowsBytes(count, dim), std::byte{0xff});
      std::ranges::copy(rows.values, PutPlainRows(rows.keys, dim, body).begin());
      Expect(body == EncodeRows("", rows), std::to_string(count) + " x " + std::to_string(dim));
    }
  }
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
