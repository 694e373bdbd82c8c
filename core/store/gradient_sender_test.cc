#include "store/gradient_sender.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "store/deadline.h"
#include "store/interrupt.h"
#include "store/local_store.h"
#include "testing/check.h"
#include "testing/test_fleet.h"

namespace sparsefleet::testing {
namespace {

constexpr double kTimeout = 60;
constexpr double kLinger = 600;  // longer than any test: only full batches are pushed
constexpr std::uint32_t kDim = 3;
constexpr std::size_t kNet = 5'000;

void DefineTables(Store& store) {
  SparseSpec ads;
  ads.name = "ads";
  ads.dim = kDim;
  ads.optimizer.learning_rate = 1.0;
  ads.initializer.kind = InitializerKind::kConstant;
  RequireOk(store.Define(ads, kTimeout));
  DenseSpec net;
  net.name = "net";
  net.size = kNet;
  net.optimizer.learning_rate = 1.0;
  RequireOk(store.Define(net, kTimeout));
}

std::shared_ptr<LocalStore> NewLocalStore() {
  auto store = std::make_shared<LocalStore>();
  DefineTables(*store);
  return store;
}

// The gradients of a mini-batch, with the memory that its sections point to.
struct Batch {
  std::vector<Key> keys;
  std::vector<float> rows;
  std::vector<float> net;
};

Contribution ContributionOf(std::shared_ptr<const Batch> batch) {
  Contribution made;
  if (!batch->keys.empty()) {
    PushSection section{"ads", batch->keys, batch->rows};
    section.keys_are_unique = true;
    made.sections.push_back(section);
  }
  if (!batch->net.empty()) made.sections.push_back({"net", {}, batch->net, true});
  made.memory = std::move(batch);
  return made;
}

// One key with a gradient of `value`.
Contribution OneRow(Key key, float value) {
  auto batch = std::make_shared<Batch>();
  batch->keys = {key};
  batch->rows.assign(kDim, value);
  return ContributionOf(std::move(batch));
}

Contribution NetOnly(float value) {
  auto batch = std::make_shared<Batch>();
  batch->net.assign(kNet, value);
  return ContributionOf(std::move(batch));
}

std::shared_ptr<Batch> RandomBatch(std::mt19937& random) {
  std::normal_distribution<float> normal;
  auto batch = std::make_shared<Batch>();
  for (Key key = 0; key < 200; ++key) {
    if (random() % 3 != 0) continue;
    batch->keys.push_back(key * 977);
    for (std::uint32_t i = 0; i < kDim; ++i) batch->rows.push_back(normal(random));
  }
  for (std::size_t i = 0; i < kNet; ++i) batch->net.push_back(normal(random));
  return batch;
}

std::unique_ptr<GradientSender> NewSender(const std::shared_ptr<Store>& store,
                                          SenderOptions options) {
  if (options.wait_s == SenderOptions().wait_s) options.wait_s = kTimeout;
  return std::make_unique<GradientSender>(store, std::make_shared<GradientSender::StepCounter>(0),
                                          std::move(options));
}

std::vector<float> RowOf(Store& store, Key key) {
  std::vector<float> row(kDim);
  const std::vector<Key> keys = {key};
  const PullSection section{"ads", keys, row};
  RequireOk(store.Pull({&section, 1}, PullMode::kInferZeros, 0, kTimeout));
  return row;
}

std::vector<float> NetOf(Store& store) {
  std::vector<float> net(kNet);
  const PullSection section{"net", {}, net, true};
  RequireOk(store.Pull({&section, 1}, PullMode::kTrain, 0, kTimeout));
  return net;
}

// Blocks the sender's thread after a push until it is opened.
class Gate {
 public:
  std::function<Status(std::size_t)> Hook() {
    return [this](std::size_t) {
      std::unique_lock lock(mutex_);
      ++arrived_;
      changed_.notify_all();
      changed_.wait(lock, [&] { return open_; });
      return Status::Ok();
    };
  }
  void AwaitArrival() {
    std::unique_lock lock(mutex_);
    Require(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return arrived_ > 0; }),
            "the sender has pushed");
  }
  void Open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  bool open_ = false;
};

const Test kMergeCounts("each push has max_merge mini-batches, and a flush sends the rest", [] {
  const auto store = NewLocalStore();
  const auto sender =
      NewSender(store, {.max_merge = 3, .queue_size = 2, .linger_s = kLinger, .summed = {"ads"}});
  for (int i = 0; i < 8; ++i) RequireOk(sender->Put(OneRow(7, 1.0F)));
  RequireOk(sender->Flush());
  const SenderStats stats = sender->stats();
  ExpectEqual(stats.pushes, 3u);
  ExpectEqual(stats.merged, 8u);
  ExpectEqual(stats.open, 0u);
  ExpectEqual(RowOf(*store, 7)[0], -8.0F);
});

const Test kBound("a full queue blocks until there is room, up to a deadline", [] {
  const auto store = NewLocalStore();
  Gate gate;
  SenderOptions options{.queue_size = 2, .on_pushed = gate.Hook(), .wait_s = 0.05};
  const auto sender = NewSender(store, options);
  RequireOk(sender->Put(OneRow(7, 1.0F)));
  gate.AwaitArrival();
  RequireOk(sender->Put(OneRow(7, 1.0F)));
  RequireOk(sender->Put(OneRow(7, 1.0F)));
  const auto late = sender->Put(OneRow(7, 1.0F));
  ExpectCode(late.status(), Code::kDeadlineExceeded);
  Expect(late.status().message().find("3 mini-batches not yet applied: waited 0.05 s for room in "
                                      "the queue") != std::string::npos,
         late.status().message());
  ExpectCode(sender->WaitEmpty(), Code::kDeadlineExceeded);
  gate.Open();
  // The gate must outlive the sender's thread.
  sender->Stop();
});

const Test kRoom("a thread waiting for room continues when the sender takes a mini-batch", [] {
  const auto store = NewLocalStore();
  Gate gate;
  const auto sender = NewSender(store, {.queue_size = 1, .on_pushed = gate.Hook()});
  RequireOk(sender->Put(OneRow(7, 1.0F)));
  gate.AwaitArrival();
  RequireOk(sender->Put(OneRow(7, 1.0F)));
  std::jthread blocked([&] { ExpectCode(sender->Put(OneRow(7, 1.0F)).status(), Code::kOk); });
  gate.Open();
  blocked.join();
  RequireOk(sender->WaitEmpty());
  ExpectEqual(RowOf(*store, 7)[0], -3.0F);
  sender->End();
});

// Rates are 1 and values start at zero: a table holds minus the sum of all pushes.
void CheckBits(bool is_summed) {
  std::mt19937 random(is_summed ? 1 : 2);
  for (const std::size_t count : {1, 2, 3, 5}) {
    const auto store = NewLocalStore();
    SenderOptions options{.max_merge = count, .queue_size = count, .linger_s = kLinger};
    if (is_summed) options.summed = {"ads", "net"};
    const auto sender = NewSender(store, options);
    std::map<Key, std::vector<float>> rows;
    std::vector<float> net;
    for (std::size_t i = 0; i < count; ++i) {
      const auto batch = RandomBatch(random);
      for (std::size_t k = 0; k < batch->keys.size(); ++k) {
        auto& row = rows.try_emplace(batch->keys[k], kDim, 0.0F).first->second;
        for (std::uint32_t j = 0; j < kDim; ++j) row[j] += batch->rows[k * kDim + j];
      }
      if (net.empty()) {
        net = batch->net;
      } else {
        for (std::size_t j = 0; j < kNet; ++j) net[j] += batch->net[j];
      }
      RequireOk(sender->Put(ContributionOf(batch)));
    }
    RequireOk(sender->Flush());
    ExpectEqual(sender->stats().pushes, 1u);
    const float scale = is_summed ? 1.0F : 1.0F / static_cast<float>(count);
    bool is_equal = true;
    for (auto& [key, row] : rows) {
      for (float& value : row) value = 0.0F - value * scale;
      is_equal = is_equal && RowOf(*store, key) == row;
    }
    Expect(is_equal, "rows of " + std::to_string(count));
    for (float& value : net) value = 0.0F - value * scale;
    Expect(NetOf(*store) == net, "dense values of " + std::to_string(count));
  }
}

const Test kSumBits("a merged sum has the bits of additions in order", [] { CheckBits(true); });
const Test kMeanBits("a merged mean has the bits of a sum times one over the count",
                     [] { CheckBits(false); });

const Test kError("the error of a push ends the sender, and every call returns it", [] {
  const auto store = NewLocalStore();
  const auto sender = NewSender(store, {});
  auto unknown = OneRow(7, 1.0F);
  unknown.sections[0].table = "other";
  RequireOk(sender->Put(std::move(unknown)));
  ExpectCode(sender->WaitEmpty(), Code::kUnknownTable);
  ExpectCode(sender->Put(OneRow(7, 1.0F)).status(), Code::kUnknownTable);
  ExpectCode(sender->Flush(), Code::kUnknownTable);
  sender->Fail(Status(Code::kInternal, "later"));
  ExpectCode(sender->Flush(), Code::kUnknownTable);
  sender->End();
  ExpectEqual(RowOf(*store, 7)[0], 0.0F);
});

const Test kFlushBesideOthers("a flush does not wait for gradients that others queue after it", [] {
  const auto store = NewLocalStore();
  std::atomic<bool> goes_on = true;
  std::atomic<std::uint64_t> queued = 0;
  std::unique_ptr<GradientSender> sender;
  SenderOptions options{.queue_size = 4, .wait_s = 10};
  // As soon as a mini-batch has been pushed, the next is queued: some are always open.
  options.on_pushed = [&](std::size_t) {
    if (!goes_on) return Status::Ok();
    ++queued;
    return sender->Put(OneRow(7, 1.0F)).status();
  };
  sender = NewSender(store, options);
  for (int i = 0; i < 2; ++i) RequireOk(sender->Put(OneRow(7, 1.0F)).status());
  RequireOk(sender->Flush());
  Expect(RowOf(*store, 7)[0] <= -2.0F);
  goes_on = false;
  RequireOk(sender->Flush());  // pushes that had begun may have queued one more each
  RequireOk(sender->Flush());
  ExpectEqual(RowOf(*store, 7)[0], -2.0F - static_cast<float>(queued));
  sender->End();
});

const Test kHookError("an error of on_pushed ends the sender", [] {
  const auto store = NewLocalStore();
  SenderOptions options;
  options.on_pushed = [](std::size_t) { return Status(Code::kNotFound, "no rate"); };
  const auto sender = NewSender(store, options);
  RequireOk(sender->Put(OneRow(7, 1.0F)));
  ExpectCode(sender->WaitEmpty(), Code::kNotFound);
  ExpectEqual(RowOf(*store, 7)[0], -1.0F);
});

const Test kShapes("mini-batches whose dense gradients differ in size are rejected", [] {
  const auto store = NewLocalStore();
  const auto sender = NewSender(store, {.max_merge = 2, .queue_size = 2, .linger_s = kLinger});
  auto batch = std::make_shared<Batch>();
  batch->net = {1, 2};
  RequireOk(sender->Put(NetOnly(1.0F)));
  RequireOk(sender->Put(ContributionOf(batch)));
  const Status status = sender->WaitEmpty();
  ExpectCode(status, Code::kShapeMismatch);
  Expect(status.message().find("'net'") != std::string::npos, status.message());
});

const Test kClosedStore("a push to a store that was closed fails", [] {
  auto store = NewLocalStore();
  const auto sender = NewSender(store, {});
  store.reset();
  RequireOk(sender->Put(OneRow(7, 1.0F)));
  ExpectCode(sender->WaitEmpty(), Code::kInvalidArgument);
});

const Test kEnd("End pushes what is queued; later calls are rejected", [] {
  const auto store = NewLocalStore();
  const auto sender = NewSender(store, {.max_merge = 50, .queue_size = 50, .linger_s = kLinger});
  for (int i = 0; i < 4; ++i) RequireOk(sender->Put(NetOnly(1.0F)));
  sender->End();
  sender->End();
  ExpectEqual(NetOf(*store)[0], -1.0F);
  ExpectCode(sender->Put(NetOnly(1.0F)).status(), Code::kInvalidArgument);
  const auto unused = NewSender(store, {});
  unused->End();
});

// Counts live objects, and those freed on a thread other than the test's.
struct TrackedMemory {
  explicit TrackedMemory(std::atomic<int>& counter) : alive(counter) { ++alive; }
  TrackedMemory(const TrackedMemory&) = delete;
  TrackedMemory& operator=(const TrackedMemory&) = delete;
  ~TrackedMemory() {
    --alive;
    Expect(std::this_thread::get_id() == owner, "freed by the thread that owns it");
  }
  std::atomic<int>& alive;
  const std::thread::id owner = std::this_thread::get_id();
  Batch batch;
};

Contribution Tracked(std::atomic<int>& alive) {
  auto memory = std::make_shared<TrackedMemory>(alive);
  memory->batch.keys = {7};
  memory->batch.rows.assign(kDim, 1.0F);
  Contribution made;
  made.sections.push_back({"ads", memory->batch.keys, memory->batch.rows});
  made.memory = std::move(memory);
  return made;
}

const Test kFullStop("a sender with a full queue and a blocked thread stops at once", [] {
  const auto store = NewLocalStore();
  std::atomic<int> alive = 0;
  Gate gate;
  auto sender = NewSender(store, {.queue_size = 3, .on_pushed = gate.Hook()});
  RequireOk(sender->Put(Tracked(alive)));
  gate.AwaitArrival();
  for (int i = 0; i < 3; ++i) RequireOk(sender->Put(Tracked(alive)));
  ExpectEqual(alive.load(), 4);
  std::jthread blocked(
      [&] { ExpectCode(sender->Put(OneRow(7, 1.0F)).status(), Code::kShuttingDown); });
  std::jthread flushing([&] { ExpectCode(sender->Flush(), Code::kShuttingDown); });
  sender->Fail(Status(Code::kShuttingDown, "the test ends"));
  blocked.join();
  flushing.join();
  gate.Open();
  sender->Stop();
  ExpectEqual(RowOf(*store, 7)[0], -1.0F);
  sender.reset();
  ExpectEqual(alive.load(), 0);
});

const Test kSpent("the memory of pushed mini-batches is returned to the caller", [] {
  const auto store = NewLocalStore();
  std::atomic<int> alive = 0;
  const auto sender = NewSender(store, {.max_merge = 2, .queue_size = 2});
  for (int i = 0; i < 6; ++i) RequireOk(sender->Put(Tracked(alive)));
  RequireOk(sender->WaitEmpty());
  ExpectEqual(alive.load(), 6);
  ExpectEqual(sender->TakeSpent().size(), 6u);
  ExpectEqual(alive.load(), 0);
});

const Test kRefresh("dense values are fetched when more than refresh_after were pushed", [] {
  const auto store = NewLocalStore();
  std::vector<float> live(kNet);
  SenderOptions options{.dense = {{"net", live}}, .refresh_after = 2};
  const auto sender = NewSender(store, options);
  const std::vector<float> seen_wanted = {0, 0, -3, -3, -3, -6};
  const std::vector<std::size_t> stale_wanted = {0, 1, 2, 0, 1, 2};
  for (std::size_t i = 0; i < seen_wanted.size(); ++i) {
    // A push of rows alone does not return dense values: they are pulled.
    const auto put = RequireOk(sender->Put(i == 5 ? OneRow(7, 1.0F) : NetOnly(1.0F)));
    ExpectEqual(put.staleness, stale_wanted[i]);
    RequireOk(sender->WaitEmpty());
    ExpectEqual(live[0], i == 5 ? -5.0F : seen_wanted[i]);
  }
  RequireOk(sender->Put(NetOnly(1.0F)));
  RequireOk(sender->Flush());
  ExpectEqual(live[kNet - 1], -6.0F);
  ExpectEqual(RequireOk(sender->Put(NetOnly(1.0F))).staleness, 0u);
  RequireOk(sender->WaitEmpty());
});

const Test kRejected("rows that a table skips for NaN are counted by the tables of the push", [] {
  const auto store = NewLocalStore();
  const auto sender = NewSender(store, {});
  RequireOk(sender->Put(OneRow(7, std::numeric_limits<float>::quiet_NaN())));
  RequireOk(sender->Put(OneRow(8, 1.0F)));
  RequireOk(sender->WaitEmpty());
  const auto rejected = sender->TakeRejected();
  Require(rejected.size() == 1);
  ExpectEqual(rejected.begin()->first, std::string("ads"));
  ExpectEqual(rejected.begin()->second, 1u);
  Expect(sender->TakeRejected().empty(), "taken once");
});

const Test kInterrupt("an interrupt ends the wait of a caller, not the sender", [] {
  const auto store = NewLocalStore();
  Gate gate;
  const auto sender = NewSender(store, {.on_pushed = gate.Hook()});
  RequireOk(sender->Put(OneRow(7, 1.0F)));
  {
    const ScopedInterrupt interrupt([] { return true; });
    ExpectCode(sender->WaitEmpty(), Code::kDeadlineExceeded);
  }
  gate.Open();
  RequireOk(sender->WaitEmpty());
  sender->Stop();
});

const Test kStaleness("a sender waits for members that are too far behind", [] {
  const auto store = NewLocalStore();
  const RoundMember fast{"pass", 0, 2}, slow{"pass", 1, 2};
  RequireOk(store->AdvanceClock(slow, 0, std::nullopt, kTimeout));
  const auto sender = NewSender(store, {.queue_size = 8, .max_open = 1});
  sender->BoundStaleness(fast, 2);
  std::atomic<int> passed = 0;
  std::jthread runner([&] {
    for (int i = 0; i < 5; ++i) {
      ExpectCode(sender->Put(NetOnly(1.0F)).status(), Code::kOk);
      ++passed;
    }
  });
  // Two may be applied ahead of the slow member, a third is pushed and waits, a fourth is held back
  // until then: the third stays open.
  RequireOk(store->WaitVersion("net", 3, kTimeout));
  ExpectCode(store->WaitVersion("net", 4, 0.1), Code::kDeadlineExceeded);
  Expect(passed.load() <= 3, "no more than three returned");
  RequireOk(store->AdvanceClock(slow, 3, std::nullopt, kTimeout));
  runner.join();
  RequireOk(sender->WaitEmpty());
  ExpectEqual(NetOf(*store)[0], -5.0F);
  // The next pass counts from zero.
  sender->BoundStaleness({"next pass", 0, 1}, 0);
  RequireOk(sender->Put(NetOnly(1.0F)));
  RequireOk(sender->WaitEmpty());
});

const Test kFailedWait("a failure ends the wait for slower members", [] {
  const auto store = NewLocalStore();
  const auto sender = NewSender(store, {.max_open = 0});
  sender->BoundStaleness({"pass", 0, 2}, 0);
  std::jthread runner([&] { ExpectCode(sender->Put(NetOnly(1.0F)).status(), Code::kCorrupt); });
  RequireOk(store->WaitVersion("net", 1, kTimeout));
  sender->Fail(Status(Code::kCorrupt, "a bad batch"));
  runner.join();
  sender->Stop();
});

// Many threads put and flush at the same time, to local or remote tables: nothing is lost or
// doubled.
void TrainTogether(const std::shared_ptr<Store>& store) {
  constexpr int kThreads = 4, kBatches = 100;
  std::vector<float> live(kNet);
  SenderOptions options{.max_merge = 3, .queue_size = 4, .linger_s = 0.001};
  options.summed = {"ads", "net"};
  options.dense = {{"net", live}};
  options.refresh_after = 4;
  const auto sender = NewSender(store, options);
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        for (int i = 0; i < kBatches; ++i) {
          auto batch = std::make_shared<Batch>();
          batch->keys = {static_cast<Key>(thread), 100};
          batch->rows.assign(2 * kDim, 1.0F);
          if (i % 2 == 0) batch->net.assign(kNet, 1.0F);
          ExpectCode(sender->Put(ContributionOf(batch)).status(), Code::kOk);
          if (i % 10 == thread) ExpectCode(sender->Flush(), Code::kOk);
          sender->TakeSpent();
          sender->stats();
        }
      });
    }
  }
  RequireOk(sender->Flush());
  sender->End();
  ExpectEqual(RowOf(*store, 100)[0], -1.0F * kThreads * kBatches);
  for (int thread = 0; thread < kThreads; ++thread) {
    ExpectEqual(RowOf(*store, static_cast<Key>(thread))[kDim - 1], -1.0F * kBatches);
  }
  ExpectEqual(live[kNet / 2], -0.5F * kThreads * kBatches);
  const SenderStats stats = sender->stats();
  ExpectEqual(stats.merged, static_cast<std::uint64_t>(kThreads * kBatches));
  ExpectEqual(RequireOk(store->Version("ads", kTimeout)), stats.pushes);
}

const Test kLocal("threads that put and flush together lose nothing, in this process",
                  [] { TrainTogether(NewLocalStore()); });
const Test kRemote("threads that put and flush together lose nothing, on servers", [] {
  const Fleet fleet(2, TransportKind::kPlain);
  const std::shared_ptr<Store> client = fleet.NewClient();
  DefineTables(*client);
  TrainTogether(client);
});

}  // namespace
}  // namespace sparsefleet::testing

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
