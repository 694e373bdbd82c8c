// Requests that run out of memory at each possible point.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "table/table_set.h"
#include "testing/check.h"
#include "testing/frame_corpus.h"
#include "testing/fuzz_target.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

// This many allocations of the thread succeed from now on, then one fails; < 0: all succeed.
thread_local std::int64_t allocations_left = -1;

void* Allocate(std::size_t size, std::size_t alignment = alignof(std::max_align_t)) {
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
  const std::size_t rounded = (size / alignment + 1) * alignment;
  if (void* memory = std::aligned_alloc(alignment, rounded)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t size) { return Allocate(size); }
void* operator new[](std::size_t size) { return Allocate(size); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

// Feeds `frame` with its n-th allocation failing, for each n, and then again with enough memory:
// the second try must always be answered. Returns after the first n that was not reached.
void FailEverywhere(FuzzTarget& target, const std::string& what, const auto& frame_of) {
  constexpr std::int64_t kMost = 2000;
  std::int64_t n = 0;
  for (bool failed = true; failed && n < kMost; ++n) {
    target.Rejoin();
    const Bytes frame = frame_of();
    try {
      allocations_left = n;
      target.Feed(frame);
    } catch (const std::bad_alloc&) {  // the connection closes
    }
    failed = allocations_left < 0;
    allocations_left = -1;
    const std::uint64_t before = target.sink().replies;
    target.Feed(frame);
    target.AnswerCommand();
    if (!ExpectEqual(target.sink().replies, before + 1)) {
      Expect(false, what + ": no answer after allocation " + std::to_string(n) + " failed");
    }
  }
  Expect(n > 2 && n < kMost, what + ": no failure occurred where expected");
}

const Test kEverywhere(
    "a request that runs out of memory anywhere is answered on the next try", [] {
      FuzzTarget target;
      SparseSpec spec;
      spec.name = "a-table-with-a-name-that-takes-memory";
      spec.dim = 2;
      RequireOk(target.tables().Define(spec));
      const std::vector<Key> keys = {5, 6};
      const std::vector<float> gradients(4, 1.0f);
      FailEverywhere(target, "push", [&] {
        PushRequest push;
        push.sections.push_back({spec.name, false, false, false, 2, 2, keys, gradients});
        return FrameOf(MessageType::kPush, Encode(push), 1);
      });
      FailEverywhere(target, "push of an unknown table", [&] {
        PushRequest push;
        push.sections.push_back({"another", false, false, false, 2, 2, keys, gradients});
        return FrameOf(MessageType::kPush, Encode(push), 1);
      });
      FailEverywhere(target, "shrink", [&] {
        return FrameOf(MessageType::kShrink, Encode(TableRequest{spec.name, 1, 0, 0}), 1);
      });
      FailEverywhere(target, "command", [&] {
        const CommandRequest command{"a-command-with-a-name-that-takes-memory",
                                     std::as_bytes(std::span(keys))};
        return FrameOf(MessageType::kCommand, Encode(command), 1);
      });
    });

const Test kAllOrNothing("a push that runs out of memory anywhere applies nothing of it", [] {
  constexpr std::size_t kKeys = 300;
  std::vector<Key> keys(kKeys);
  for (std::size_t i = 0; i < kKeys; ++i) keys[i] = i;
  const std::vector<float> gradients(2 * kKeys, -1.0F);
  const std::vector<float> dense(10, -1.0F);
  std::int64_t n = 0;
  for (bool failed = true; failed; ++n) {
    TableSet tables;
    for (const char* name : {"a", "b"}) {
      SparseSpec spec;
      spec.name = name;
      spec.dim = 2;
      spec.optimizer.learning_rate = 1.0;
      RequireOk(tables.Define(spec));
    }
    DenseSpec whole;
    whole.name = "d";
    whole.size = dense.size();
    whole.optimizer.learning_rate = 1.0;
    RequireOk(tables.Define(whole));
    // Some rows exist, and a cut keeps their old values when they change; others are new.
    auto table = RequireOk(tables.Sparse("a"));
    const auto some = std::span(keys).first(kKeys / 2);
    RequireOk(table->Push(some, std::span(gradients).first(kKeys), 1, true).status());
    const TableCut cut = table->OpenCut();
    const auto changes = table->WatchChanges();
    const PushSection sections[] = {{"a", keys, gradients, false, true},
                                    {"b", keys, gradients, false, false},
                                    {"d", {}, dense, true}};
    bool is_applied = false;
    try {
      allocations_left = n;
      is_applied = tables.Push(sections, 1).ok();
    } catch (const std::bad_alloc&) {
    }
    failed = allocations_left < 0;
    allocations_left = -1;
    std::vector<float> a(2 * kKeys);
    std::vector<float> b(2 * kKeys);
    std::vector<float> d(dense.size());
    const PullSection pulled[] = {{"a", keys, a}, {"b", keys, b}, {"d", {}, d, true}};
    RequireOk(tables.Pull(pulled, PullMode::kInferZeros, 1));
    const float added = is_applied ? 1.0F : 0.0F;
    Expect(b == std::vector<float>(2 * kKeys, added), "one table was updated without the others");
    Expect(d == std::vector<float>(dense.size(), added), "the dense table");
    for (std::size_t i = 0; i < a.size(); ++i) {
      const float before = i < kKeys ? 1.0F : 0.0F;
      if (!ExpectEqual(a[i], before + added)) break;
    }
    ExpectEqual(RequireOk(tables.Version("a")), is_applied ? 1u : 0u);
    ExpectEqual(changes->Take(true, 0, 1000).size(), is_applied ? kKeys : 0u);
  }
  Expect(n > 20, "no failure occurred where expected");
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
