#include "transport/frame.h"

#include <array>
#include <string>

#include "testing/check.h"

namespace sparsefleet::testing {
namespace {

using HeaderBytes = std::array<std::byte, kFrameHeaderBytes>;

FrameHeader PullHeader() {
  FrameHeader header;
  header.type = MessageType::kPull;
  header.flags = kFlagReply;
  header.request_id = 0x0102030405060708;
  header.sequence = 0;
  header.acked_below = 0x1112131415161718;
  header.timeout_ms = 0x21222324;
  header.body_bytes = 100;
  return header;
}

HeaderBytes Encoded(const FrameHeader& header) {
  HeaderBytes bytes;
  EncodeFrameHeader(header, bytes);
  return bytes;
}

Status Decoded(const HeaderBytes& bytes, std::uint64_t limit = 1000) {
  return DecodeFrameHeader(bytes, limit).status();
}

const Test kRoundTrip("a header survives encoding, every field at its documented offset", [] {
  const auto bytes = Encoded(PullHeader());
  const auto at = [&](std::size_t i) { return std::to_integer<int>(bytes[i]); };
  ExpectEqual(at(0), 'S');
  ExpectEqual(at(3), 'L');
  ExpectEqual(at(4), 1);
  ExpectEqual(at(5), 20);
  ExpectEqual(at(6), 1);
  ExpectEqual(at(8), 8);
  ExpectEqual(at(24), 0x18);
  ExpectEqual(at(32), 0x24);
  ExpectEqual(at(36), 100);
  const auto header = RequireOk(DecodeFrameHeader(bytes, 1000));
  Expect(header.type == MessageType::kPull);
  ExpectEqual(header.flags, kFlagReply);
  ExpectEqual(header.request_id, 0x0102030405060708u);
  ExpectEqual(header.acked_below, 0x1112131415161718u);
  ExpectEqual(header.timeout_ms, 0x21222324u);
  ExpectEqual(header.body_bytes, 100u);
});

const Test kMagic("any wrong byte in the magic is kProtocol", [] {
  for (std::size_t i = 0; i < 4; ++i) {
    auto bytes = Encoded(PullHeader());
    bytes[i] ^= std::byte{1};
    ExpectCode(Decoded(bytes), Code::kProtocol);
  }
});

const Test kVersion("another version is kVersionMismatch naming both", [] {
  auto bytes = Encoded(PullHeader());
  bytes[4] = std::byte{77};
  const Status status = Decoded(bytes);
  ExpectCode(status, Code::kVersionMismatch);
  Expect(status.message().find("77") != std::string::npos);
});

const Test kTypes("unknown types are kProtocol, known ones pass", [] {
  int known = 0;
  for (int type = 0; type < 256; ++type) {
    auto bytes = Encoded(PullHeader());
    bytes[5] = static_cast<std::byte>(type);
    const bool is_known = IsKnown(static_cast<MessageType>(type));
    known += is_known ? 1 : 0;
    ExpectCode(Decoded(bytes), is_known ? Code::kOk : Code::kProtocol);
    Expect((std::string(MessageName(static_cast<MessageType>(type))) == "unknown") != is_known);
  }
  ExpectEqual(known, 37);
});

const Test kFlags("unknown flags are kProtocol", [] {
  for (int bit = 2; bit < 16; ++bit) {
    FrameHeader header = PullHeader();
    header.flags = static_cast<std::uint16_t>(1u << bit);
    ExpectCode(Decoded(Encoded(header)), Code::kProtocol);
  }
});

const Test kSize("a body over the limit is kTooLarge naming both sizes", [] {
  const Status status = Decoded(Encoded(PullHeader()), 99);
  ExpectCode(status, Code::kTooLarge);
  Expect(status.message().find("100") != std::string::npos);
  Expect(status.message().find("99") != std::string::npos);
  ExpectCode(Decoded(Encoded(PullHeader()), 100), Code::kOk);
});

const Test kSequence("a recorded request needs a sequence, another must have none", [] {
  FrameHeader header = PullHeader();
  header.flags = 0;
  header.sequence = 5;
  ExpectCode(Decoded(Encoded(header)), Code::kProtocol);
  header.type = MessageType::kPush;
  ExpectCode(Decoded(Encoded(header)), Code::kOk);
  header.sequence = 0;
  ExpectCode(Decoded(Encoded(header)), Code::kProtocol);
  header.flags = kFlagReply;
  ExpectCode(Decoded(Encoded(header)), Code::kOk);
});

}  // namespace
}  // namespace sparsefleet::testing

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
