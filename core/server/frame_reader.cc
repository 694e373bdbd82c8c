#include "server/frame_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace sparsefleet {
namespace {

constexpr std::size_t kFirstBodyBytes = 4u << 20;  // allocated before any body byte arrives
constexpr std::size_t kKeptBodyBytes = 4u << 20;   // kept between frames
constexpr std::uint64_t kYieldAfterBytes = 8u << 20;

}  // namespace

FrameReader::Step FrameReader::Read(Channel& channel, std::uint64_t max_frame_bytes) {
  const std::uint64_t start = bytes_read_;
  while (have_ < kFrameHeaderBytes) {
    const Step step = ReadInto(channel, std::span(header_bytes_).subspan(have_));
    if (step.outcome != Outcome::kFrame) return step;
    if (have_ < kFrameHeaderBytes) continue;
    auto decoded = DecodeFrameHeader(header_bytes_, max_frame_bytes);
    if (!decoded.ok()) {
      SalvageHeader();
      return {Outcome::kBadFrame, Ready::kDone, decoded.status()};
    }
    header_ = decoded.value();
    Grow();
  }
  while (have_ < kFrameHeaderBytes + header_.body_bytes) {
    const std::size_t body_have = have_ - kFrameHeaderBytes;
    if (body_have == capacity_) Grow();
    const std::size_t until = std::min<std::size_t>(capacity_, header_.body_bytes);
    const Step step = ReadInto(channel, std::span(body_.get() + body_have, until - body_have));
    if (step.outcome != Outcome::kFrame) return step;
    const bool whole = have_ == kFrameHeaderBytes + header_.body_bytes;
    if (!whole && bytes_read_ - start > kYieldAfterBytes) return {Outcome::kYield, {}, {}};
  }
  return {Outcome::kFrame, Ready::kDone, {}};
}

FrameReader::Step FrameReader::ReadInto(Channel& channel, std::span<std::byte> out) {
  auto progress = channel.Read(out);
  if (!progress.ok()) return {Outcome::kBroken, Ready::kDone, progress.status()};
  if (progress.value().ready != Ready::kDone) {
    return {Outcome::kBlocked, progress.value().ready, {}};
  }
  if (progress.value().bytes == 0) return {Outcome::kEnd, Ready::kDone, {}};
  have_ += progress.value().bytes;
  bytes_read_ += progress.value().bytes;
  return {Outcome::kFrame, Ready::kDone, {}};
}

// As much of the type and request id as the bytes contain, so that the error reply matches its
// request.
void FrameReader::SalvageHeader() {
  header_ = {};
  std::memcpy(&header_.request_id, &header_bytes_[8], sizeof(header_.request_id));
  const auto type = static_cast<MessageType>(header_bytes_[5]);
  if (IsKnown(type)) header_.type = type;
}

void FrameReader::Grow() {
  const std::size_t wanted = std::min<std::size_t>(
      header_.body_bytes, std::max(kFirstBodyBytes, 2 * (have_ - kFrameHeaderBytes)));
  if (wanted <= capacity_) return;
  auto grown = std::make_unique_for_overwrite<std::byte[]>(wanted);
  if (have_ > kFrameHeaderBytes) std::memcpy(grown.get(), body_.get(), have_ - kFrameHeaderBytes);
  body_ = std::move(grown);
  capacity_ = wanted;
}

void FrameReader::Next() {
  have_ = 0;
  if (capacity_ > kKeptBodyBytes) Trim();
}

std::unique_ptr<std::byte[]> FrameReader::TakeBody() {
  capacity_ = 0;
  return std::move(body_);
}

void FrameReader::Trim() {
  body_.reset();
  capacity_ = 0;
}

}  // namespace sparsefleet
