#include "server/task_queue.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "testing/check.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

// Threads that wait at a poller, as those of a server do.
struct Pool {
  explicit Pool(int num_threads) {
    RequireOk(queue.Open());
    for (int i = 0; i < num_threads; ++i) {
      threads.emplace_back([this] {
        while (poller->Wait()) queue.Help();
      });
    }
  }
  ~Pool() { poller->Stop(); }

  const std::unique_ptr<Poller> poller = RequireOk(Poller::Create());
  TaskQueue queue{*poller, 7};
  std::vector<std::jthread> threads;
};

const Test kOnce("each task runs once, whoever runs it", [] {
  Pool pool(3);
  std::vector<std::atomic<int>> runs(2000);
  std::vector<std::jthread> callers;
  std::atomic<int> left = 2000;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int batch = 0; batch < 50; ++batch) {
        std::vector<std::function<void()>> tasks;
        for (int i = 0; i < 10; ++i) {
          tasks.emplace_back([&, at = caller * 500 + batch * 10 + i] {
            ++runs[static_cast<std::size_t>(at)];
            --left;
          });
        }
        pool.queue.Run(std::move(tasks));
      }
    });
  }
  callers.clear();
  while (left > 0) std::this_thread::yield();
  for (const auto& count : runs) ExpectEqual(count.load(), 1);
});

const Test kHelp("other threads take part while one is busy", [] {
  Pool pool(2);
  // Each task waits for the other to start, so that two threads must run them.
  std::atomic<int> started = 0;
  const auto meet = [&] {
    ++started;
    while (started < 2) std::this_thread::yield();
  };
  pool.queue.Run({meet, meet});
  ExpectEqual(started.load(), 2);
});

const Test kAlone("without other threads the caller runs all tasks before it returns", [] {
  Pool pool(0);
  int runs = 0;
  pool.queue.Run({[&] { ++runs; }, [&] { ++runs; }, [&] { ++runs; }});
  ExpectEqual(runs, 3);
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
