#include "server/session_table.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "testing/check.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

using namespace std::chrono_literals;

HelloRequest HelloOf(std::uint64_t client) {
  HelloRequest hello;
  hello.client_id = client;
  hello.client_name = "worker-0";
  return hello;
}

const Test kBackWhileDropped("a client that comes back while it is dropped joins afterwards", [] {
  SessionTable table(1s);
  const auto begun = std::chrono::steady_clock::now();
  const auto joined = table.Join(HelloOf(1), "here", begun);
  table.Leave(*joined.session, begun);
  std::atomic<bool> is_dropped = false;
  std::atomic<bool> is_asking = false;
  std::jthread client;
  table.DropLost(begun + 2s, [&](Session& session) {
    ExpectEqual(session.id(), 1u);
    client = std::jthread([&] {
      is_asking = true;
      const auto again = table.Join(HelloOf(1), "here", begun + 2s);
      Expect(is_dropped, "it joined while its state was being dropped");
      Expect(again.was_lost);
    });
    while (!is_asking) std::this_thread::yield();
    std::this_thread::sleep_for(50ms);  // long enough for a join that does not wait
    is_dropped = true;
  });
  client.join();
  Expect(table.HasId(1));
  table.DropLost(begun + 2s, [](Session&) { Expect(false, "it was dropped again"); });
});

const Test kTouched("a client that came back before the housekeeper looks is not dropped", [] {
  SessionTable table(1s);
  const auto begun = std::chrono::steady_clock::now();
  HelloRequest hello = HelloOf(1);
  hello.control = true;  // with heartbeats, so that its silence counts at once
  const auto joined = table.Join(hello, "here", begun);
  table.Leave(*joined.session, begun);
  table.Join(hello, "here", begun + 2s);
  table.DropLost(begun + 2s, [](Session&) { Expect(false, "it is here"); });
});

const Test kEnded("clients that are known to have ended are lost at once", [] {
  SessionTable table(1h);
  const auto begun = std::chrono::steady_clock::now();
  HelloRequest other = HelloOf(2);
  other.client_name = "worker-1";
  const auto joined = table.Join(HelloOf(1), "here", begun);
  table.Join(other, "here", begun);
  std::vector<std::uint64_t> dropped;
  const auto drop = [&](Session& session) { dropped.push_back(session.id()); };
  table.DropNamed("worker-0", drop);
  table.DropNamed("worker-0", drop);
  ExpectEqual(dropped.size(), 1u);
  ExpectEqual(dropped[0], 1u);
  Expect(!table.HasId(1));
  Expect(table.HasId(2));
  Expect(table.Join(HelloOf(1), "here", begun).was_lost);
  Expect(table.HasId(1));
});

const Test kExpected("clients that are being restarted get their time again", [] {
  SessionTable table(1s);
  const auto begun = std::chrono::steady_clock::now();
  const auto joined = table.Join(HelloOf(1), "here", begun);
  ExpectEqual(table.ExpectNamed("worker-0", begun), 0u);  // it is here
  table.Leave(*joined.session, begun);
  ExpectEqual(table.ExpectNamed("worker-0", begun + 900ms), 1u);
  ExpectEqual(table.ExpectNamed("worker-7", begun + 900ms), 0u);
  table.DropLost(begun + 1800ms, [](Session&) { Expect(false, "it is expected"); });
  int dropped = 0;
  table.DropLost(begun + 2s, [&](Session&) { ++dropped; });
  ExpectEqual(dropped, 1);
  ExpectEqual(table.ExpectNamed("worker-0", begun + 2s), 0u);
});

}  // namespace

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
