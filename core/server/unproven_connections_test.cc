#include "server/unproven_connections.h"

#include <string>

#include "testing/check.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

const Test kOldest("over the limit the oldest connection of the busiest address is dropped", [] {
  UnprovenConnections unproven(4, 4);
  Expect(!unproven.Add(1, "lone"));
  Expect(!unproven.Add(2, "busy"));
  Expect(!unproven.Add(3, "busy"));
  Expect(!unproven.Add(4, "busy"));
  Expect(unproven.Add(5, "new") == 2u, "the oldest of all came from a quiet address");
  Expect(unproven.Add(6, "new") == 3u);
  ExpectEqual(unproven.size(), 4u);
});

const Test kPerAddress("an address over its own limit loses its oldest connection", [] {
  UnprovenConnections unproven(100, 2);
  Expect(!unproven.Add(1, "other"));
  Expect(!unproven.Add(2, "flood"));
  Expect(!unproven.Add(3, "flood"));
  for (std::uint64_t id = 4; id < 1000; ++id) {
    Require(unproven.Add(id, "flood") == id - 2, "the oldest of the flood");
  }
  ExpectEqual(unproven.size(), 3u);
  Expect(unproven.Remove(1) == "other");
});

const Test kOutOfOrder("connections added out of order are still dropped by age", [] {
  UnprovenConnections unproven(3, 3);
  for (const std::uint64_t id : {7, 8, 9}) Expect(!unproven.Add(id, "a"));
  Expect(unproven.Add(1, "a") == 1u, "older than all others");
  Expect(unproven.Add(2, "b") == 7u, "its own address has fewer");
  Expect(unproven.Add(10, "a") == 8u);
});

const Test kRemoved("removing a connection frees its place", [] {
  UnprovenConnections unproven(2, 1);
  Expect(!unproven.Add(1, "a"));
  Expect(unproven.Remove(1) == "a");
  Expect(!unproven.Remove(1), "only once");
  Expect(!unproven.Add(2, "a"));
  Expect(!unproven.Add(3, "b"));
  Expect(unproven.TakeOldest() == 2u);
  Expect(unproven.TakeOldest() == 3u);
  Expect(!unproven.TakeOldest());
  ExpectEqual(unproven.size(), 0u);
});

const Test kLimitOfOne("a limit of one keeps the newest", [] {
  UnprovenConnections unproven(1, 1);
  Expect(!unproven.Add(1, "a"));
  Expect(unproven.Add(2, "b") == 1u);
  Expect(unproven.Add(3, "b") == 2u);
  ExpectEqual(unproven.size(), 1u);
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
