#include "parse/hash64.h"

#include <string>

#include "testing/check.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

const Test kKnown("known answers, which may never change", [] {
  ExpectEqual(Hash64(""), 0xEF46DB3751D8E999ULL);
  ExpectEqual(Hash64("a"), 0xD24EC4F1A98C6E5BULL);
  ExpectEqual(Hash64("abc"), 0x44BC2CF5AD770999ULL);
  ExpectEqual(Hash64("xxhash"), 3665147885093898016ULL);
  ExpectEqual(Hash64("xxhash", 20141025), 13067679811253438005ULL);
  ExpectEqual(Hash64("Nobody inspects the spammish repetition"), 0xFBCEA83C8A378BF1ULL);
});

const Test kSeed("a different seed or length gives a different hash", [] {
  Expect(Hash64("68fd1e64", 0) != Hash64("68fd1e64", 1));
  const std::string text(100, 'x');
  for (std::size_t n = 1; n <= text.size(); ++n) {
    Expect(Hash64({text.data(), n}) != Hash64({text.data(), n - 1}));
  }
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
