// Rounds, clocks and watched changes of clients with real servers.
#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "server/server.h"
#include "store/local_store.h"
#include "testing/check.h"
#include "testing/test_fleet.h"

namespace sparsefleet::testing {
namespace {

constexpr double kTimeout_s = 60;
constexpr std::uint32_t kServers = 2;
constexpr std::uint32_t kMembers = 3;
constexpr std::size_t kTower = 60'000;  // its parts are kept by the server, not copied

void DefineTables(Store& store) {
  SparseSpec ads;
  ads.name = "ads";
  ads.dim = 2;
  ads.optimizer.kind = OptimizerKind::kAdagrad;
  RequireOk(store.Define(ads, kTimeout_s));
  DenseSpec tower;
  tower.name = "tower";
  tower.size = kTower;
  tower.min_block_size = 1000;
  tower.optimizer.kind = OptimizerKind::kAdam;
  RequireOk(store.Define(tower, kTimeout_s));
}

// A member's gradients of a round, the same for the same numbers.
struct Gradients {
  Gradients(std::uint32_t rank, std::uint64_t round) {
    for (std::size_t i = 0; i < 40; ++i) {
      keys.push_back((i * (rank + 3) + round) % 37);
      rows.push_back(0.01F * static_cast<float>(i + rank));
      rows.push_back(-0.02F * static_cast<float>(i + round));
    }
    for (std::size_t i = 0; i < kTower; ++i) {
      tower.push_back(0.001F * static_cast<float>((i * (rank + 1) + round) % 1000));
    }
  }
  std::vector<PushSection> Sections() const {
    return {{"ads", keys, rows}, {"tower", {}, tower, true}};
  }
  std::vector<Key> keys;
  std::vector<float> rows;
  std::vector<float> tower;
};

// Every member's store takes part in `rounds` rounds, then leaves.
void TakeRounds(std::span<Store* const> stores, std::uint64_t rounds) {
  std::vector<std::jthread> threads;
  for (std::uint32_t rank = 0; rank < kMembers; ++rank) {
    threads.emplace_back([&, rank] {
      const RoundMember member{"train", rank, kMembers};
      for (std::uint64_t round = 1; round <= rounds; ++round) {
        const Gradients gradients(rank, round);
        const auto sections = gradients.Sections();
        ExpectCode(stores[rank]->PushRound(member, round, sections, round, kTimeout_s).status(),
                   Code::kOk);
        ExpectCode(stores[rank]->AdvanceClock(member, round, 1, kTimeout_s).status(), Code::kOk);
      }
      ExpectCode(stores[rank]->LeaveGroup(member, kTimeout_s), Code::kOk);
    });
  }
}

std::vector<float> AllValues(Store& store) {
  std::vector<Key> keys(40);
  for (Key key = 0; key < keys.size(); ++key) keys[key] = key;
  std::vector<float> rows(keys.size() * 2);
  std::vector<float> tower(kTower);
  const PullSection sections[] = {{"ads", keys, rows}, {"tower", {}, tower, true}};
  RequireOk(store.Pull(sections, PullMode::kInferZeros, 1, kTimeout_s));
  rows.insert(rows.end(), tower.begin(), tower.end());
  return rows;
}

const Test kSameBits("rounds over servers give the same bits as those in one process", [] {
  LocalStore local;
  DefineTables(local);
  Store* const here[] = {&local, &local, &local};
  TakeRounds(here, 6);
  const Fleet fleet(kServers, TransportKind::kPlain);
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<Store*> there;
  for (std::uint32_t rank = 0; rank < kMembers; ++rank) {
    clients.push_back(fleet.NewClient("worker-" + std::to_string(rank)));
    there.push_back(clients.back().get());
  }
  DefineTables(*there[0]);
  TakeRounds(there, 6);
  Expect(AllValues(local) == AllValues(*there[0]), "values");
  ExpectEqual(RequireOk(there[0]->Version("tower", kTimeout_s)), 6u);
});

const Test kGone("a waiting member's error names one that ended without leaving", [] {
  const Fleet fleet(kServers, TransportKind::kPlain);
  const auto waiting = fleet.NewClient("worker-0");
  auto going = fleet.NewClient("worker-1");
  RequireOk(going->AdvanceClock({"g", 1, 2}, 1, {}, kTimeout_s));
  Status seen;
  {
    const std::jthread waiter(
        [&] { seen = waiting->AdvanceClock({"g", 0, 2}, 9, 1, kTimeout_s).status(); });
    going.reset();
  }
  ExpectCode(seen, Code::kPeerLost);
  Expect(seen.message().find("rank 1 ('worker-1')") != std::string::npos, seen.message());
});

const Test kGoneBefore("later members' errors name one that ended before they came", [] {
  const Fleet fleet(kServers, TransportKind::kPlain);
  const auto coming = fleet.NewClient("worker-0");
  auto going = fleet.NewClient("worker-1");
  RequireOk(going->AdvanceClock({"g", 1, 2}, 0, {}, kTimeout_s));
  going.reset();
  const Status seen = coming->PushRound({"g", 0, 2}, 1, {}, 1, kTimeout_s).status();
  ExpectCode(seen, Code::kPeerLost);
  Expect(seen.message().find("rank 1 ('worker-1')") != std::string::npos, seen.message());
  // Another job on the same servers.
  const auto fresh = fleet.NewClient("worker-0");
  RequireOk(coming->LeaveGroup({"g", 0, 2}, kTimeout_s));
  RequireOk(fresh->PushRound({"g", 0, 1}, 1, {}, 1, kTimeout_s));
});

const Test kForeign("a third client can neither leave nor act for a live worker", [] {
  const Fleet fleet(kServers, TransportKind::kPlain);
  const auto first = fleet.NewClient("worker-0");
  auto second = fleet.NewClient("worker-1");
  const auto stale = fleet.NewClient("worker-1");
  const RoundMember member{"g", 1, 2};
  RequireOk(second->AdvanceClock(member, 0, {}, kTimeout_s));
  const Status refused[] = {stale->LeaveGroup(member, kTimeout_s),
                            stale->PushRound(member, 1, {}, 1, kTimeout_s).status(),
                            stale->AdvanceClock(member, 5, {}, kTimeout_s).status()};
  for (const Status& status : refused) {
    ExpectCode(status, Code::kNotOwner);
    Expect(
        status.message().find("rank 1 belongs to client 'worker-1' (session ") != std::string::npos,
        status.message());
  }
  {
    const std::jthread other(
        [&] { ExpectCode(second->PushRound(member, 1, {}, 1, kTimeout_s).status(), Code::kOk); });
    ExpectCode(first->PushRound({"g", 0, 2}, 1, {}, 1, kTimeout_s).status(), Code::kOk);
  }
  // Its owner ends without leaving: the rank is free, and its successor starts from scratch.
  RequireOk(second->AdvanceClock(member, 3, {}, kTimeout_s));
  second.reset();
  RequireOk(stale->AdvanceClock(member, 0, {}, kTimeout_s));
  {
    const std::jthread other(
        [&] { ExpectCode(stale->PushRound(member, 2, {}, 1, kTimeout_s).status(), Code::kOk); });
    ExpectCode(first->PushRound({"g", 0, 2}, 2, {}, 1, kTimeout_s).status(), Code::kOk);
  }
  RequireOk(stale->LeaveGroup(member, kTimeout_s));
});

double RoundsAsked(Store& store, std::uint32_t server) {
  return RequireOk(store.Stats(kTimeout_s))[server]["server.requests.push_round"];
}

const Test kRefused("a rejected round is over on every server before the next one begins", [] {
  const Fleet fleet(kServers, TransportKind::kPlain);
  const auto first = fleet.NewClient("worker-0");
  const auto second = fleet.NewClient("worker-1");
  const auto looker = fleet.NewClient("looker");
  SparseSpec strict;
  strict.name = "strict";
  strict.dim = 64;
  strict.non_finite = NonFinitePolicy::kRaise;
  RequireOk(first->Define(strict, kTimeout_s));
  // All for the second server, which has received it long after the first has rejected the round.
  std::vector<Key> keys;
  for (Key key = 0; keys.size() < 100'000; ++key) {
    if (OwnerOf(key, kServers) == 1) keys.push_back(key);
  }
  const std::vector<float> gradients(keys.size() * strict.dim, 1.0F);
  const std::vector<float> bad(strict.dim, std::numeric_limits<float>::quiet_NaN());
  const PushSection many{"strict", keys, gradients};
  const PushSection few{"strict", {keys.data(), 1}, {gradients.data(), strict.dim}};
  const PushSection refused{"strict", {keys.data(), 1}, bad};
  const auto push = [&](Client& client, std::uint32_t rank, std::uint64_t round,
                        const PushSection& section) {
    return client.PushRound({"g", rank, 2}, round, {&section, 1}, 1, kTimeout_s).status();
  };
  std::atomic<bool> is_done = false;
  Status seen;
  {
    std::jthread refuser([&] { ExpectCode(push(*second, 1, 1, refused), Code::kNonFinite); });
    while (RoundsAsked(*looker, 0) < 1 || RoundsAsked(*looker, 1) < 1) {
    }
    ExpectCode(push(*first, 0, 1, many), Code::kNonFinite);
  }
  const std::jthread next([&] {
    seen = push(*first, 0, 2, few);
    is_done = true;
    is_done.notify_all();
  });
  while (!is_done && RoundsAsked(*looker, 1) < 3) {
  }
  ExpectCode(push(*second, 1, 2, few), Code::kOk);
  is_done.wait(false);
  ExpectCode(seen, Code::kOk);
});

std::vector<Key> TakeKeys(Store& store) {
  std::vector<Key> keys;
  auto changes = RequireOk(store.TakeChanges("ads", kTimeout_s));
  RowBatch rows;
  while (RequireOk(changes->Next(100, rows))) {
    keys.insert(keys.end(), rows.keys.begin(), rows.keys.end());
    ExpectEqual(rows.values.size(), rows.keys.size() * 2);
  }
  std::ranges::sort(keys);
  return keys;
}

const Test kWatchers("each watching client takes all changes once, while others push", [] {
  const Fleet fleet(kServers, TransportKind::kPlain);
  const auto pusher = fleet.NewClient("pusher");
  DefineTables(*pusher);
  const auto first = fleet.NewClient("first");
  const auto second = fleet.NewClient("second");
  for (Client* watcher : {first.get(), second.get()}) {
    RequireOk(watcher->WatchChanges("ads", kTimeout_s));
  }
  constexpr Key kPushes = 200;
  std::vector<Key> wanted(kPushes);
  for (Key key = 0; key < kPushes; ++key) wanted[key] = key;
  std::vector<Key> early;
  {
    const std::jthread thread([&] {
      const std::vector<float> gradient = {1, 2};
      for (const Key& key : wanted) {
        const PushSection section{"ads", {&key, 1}, gradient};
        ExpectCode(pusher->Push({&section, 1}, 1, kTimeout_s).status(), Code::kOk);
      }
    });
    while (early.size() < kPushes / 2) {
      const auto more = TakeKeys(*first);
      early.insert(early.end(), more.begin(), more.end());
    }
  }
  const auto rest = TakeKeys(*first);
  early.insert(early.end(), rest.begin(), rest.end());
  std::ranges::sort(early);
  Expect(early == wanted, "each key once");
  Expect(TakeKeys(*second) == wanted, "the other watcher has its own");
  ExpectCode(RequireOk(pusher->TakeChanges("ads", kTimeout_s))
                 ->Next(1, *std::make_unique<RowBatch>())
                 .status(),
             Code::kNotFound);
});

const Test kAbandoned("what an abandoned iteration did not return comes with the next one", [] {
  const Fleet fleet(kServers, TransportKind::kPlain);
  const auto client = fleet.NewClient("watcher");
  DefineTables(*client);
  RequireOk(client->WatchChanges("ads", kTimeout_s));
  std::vector<Key> wanted(300);
  for (Key key = 0; key < wanted.size(); ++key) wanted[key] = key;
  const std::vector<float> gradients(2 * wanted.size(), 1.0F);
  const PushSection push{"ads", wanted, gradients};
  RequireOk(client->Push({&push, 1}, 1, kTimeout_s).status());
  std::vector<Key> taken;
  {
    RowBatch rows;
    Require(RequireOk(RequireOk(client->TakeChanges("ads", kTimeout_s))->Next(100, rows)));
    taken = rows.keys;
  }
  Expect(taken.size() < wanted.size(), "the first chunk is that of one server");
  const auto rest = TakeKeys(*client);
  taken.insert(taken.end(), rest.begin(), rest.end());
  std::ranges::sort(taken);
  Expect(taken == wanted, "each key once");
});

}  // namespace
}  // namespace sparsefleet::testing

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
