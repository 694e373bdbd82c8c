// Requests carried out while memory runs out at any one point.
#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "testing/check.h"
#include "testing/frame_corpus.h"
#include "testing/fuzz_target.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

// So many allocations of this thread succeed from now on, then one fails; < 0: all succeed.
thread_local std::int64_t allocations_left = -1;

void* Allocate(std::size_t size) {
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t size) { return Allocate(size); }
void* operator new[](std::size_t size) { return Allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

// Feeds `frame` with its n-th allocation failing, for each n, and then again with memory enough:
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
    } catch (const std::bad_alloc&) {  // a connection closes then
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
  Expect(n > 2 && n < kMost, what + ": the failures were not where they should be");
}

const Test kEverywhere("a request that ran out of memory anywhere is answered at the next try", [] {
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

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
