// Writing and reading frame bodies. Arrays start at multiples of 8 from the body's start, so
// that a body in memory aligned to 8 bytes is read in place.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "status/status.h"

namespace sparsefleet {

static_assert(std::endian::native == std::endian::little,
              "bodies are read in place: a big-endian machine needs a swapping reader");

// A body being written.
class BodyWriter {
 public:
  template <typename T>
    requires std::is_arithmetic_v<T>
  void Put(T value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof(T));
  }
  void PutString(std::string_view text) {  // u32 length, then the bytes
    Put(static_cast<std::uint32_t>(text.size()));
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    bytes_.insert(bytes_.end(), bytes, bytes + text.size());
  }
  // Writes zero bytes up to the next multiple of 8.
  void Pad() { bytes_.resize(bytes_.size() + (0 - bytes_.size() - elsewhere_) % 8); }
  // Pads, then writes the elements.
  template <typename T>
    requires std::is_trivially_copyable_v<T>
  void PutArray(std::span<const T> values) {
    Pad();
    PutMore(values);
  }

  // Continues the array written last.
  template <typename T>
    requires std::is_trivially_copyable_v<T>
  void PutMore(std::span<const T> values) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + values.size_bytes());
    if (!values.empty()) std::memcpy(bytes_.data() + at, values.data(), values.size_bytes());
  }

  // Pads unless it continues the previous array, then skips `count` bytes of an array that is sent
  // from where it is stored; returns how many of bytes() come before it.
  std::size_t PutElsewhere(std::size_t count, bool goes_on = false) {
    if (!goes_on) Pad();
    elsewhere_ += count;
    return bytes_.size();
  }

  std::span<const std::byte> bytes() const { return bytes_; }
  std::vector<std::byte> Take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
  std::size_t elsewhere_ = 0;
};

// Reads what a BodyWriter wrote. A read past the end, or an impossible length, marks the reader as
// bad; later reads return zeros and empty spans, so a decoder checks once, at the end.
// Spans and string views point into the body.
class BodyReader {
 public:
  explicit BodyReader(std::span<const std::byte> body) : body_(body) {}

  template <typename T>
    requires std::is_arithmetic_v<T>
  T Get() {
    T value{};
    if (sizeof(T) > left()) {
      bad_ = true;
      return value;
    }
    std::memcpy(&value, body_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  bool GetBool() {
    const auto value = Get<std::uint8_t>();
    if (value > 1) bad_ = true;
    return value == 1;
  }
  // An enum whose values are 0 .. last.
  template <typename E>
  E GetEnum(E last) {
    const auto value = Get<std::underlying_type_t<E>>();
    if (value > static_cast<std::underlying_type_t<E>>(last)) {
      bad_ = true;
      return E{};
    }
    return static_cast<E>(value);
  }
  std::string_view GetString(std::size_t max_bytes) {
    const auto size = Get<std::uint32_t>();
    if (bad_ || size > max_bytes || size > left()) {
      bad_ = true;
      return {};
    }
    const auto* text = reinterpret_cast<const char*>(body_.data() + at_);
    at_ += size;
    return {text, size};
  }
  void Pad() {
    const std::size_t to = (at_ + 7) & ~std::size_t{7};
    if (to > body_.size()) {
      bad_ = true;
      return;
    }
    at_ = to;
  }
  template <typename T>
    requires std::is_trivially_copyable_v<T>
  std::span<const T> GetArray(std::uint64_t count) {
    Pad();
    if (bad_ || count > left() / sizeof(T)) {
      bad_ = true;
      return {};
    }
    const auto* first = reinterpret_cast<const T*>(body_.data() + at_);
    at_ += static_cast<std::size_t>(count) * sizeof(T);
    return {first, static_cast<std::size_t>(count)};
  }

  bool bad() const { return bad_; }
  std::size_t left() const { return bad_ ? 0 : body_.size() - at_; }
  // Ok if all reads were valid and nothing is left over; otherwise kProtocol naming `what`.
  Status Finish(std::string_view what) const {
    if (bad_) {
      return {Code::kProtocol, std::string(what) + ": body of " + std::to_string(body_.size()) +
                                   " bytes is truncated or malformed"};
    }
    if (at_ != body_.size()) {
      return {Code::kProtocol, std::string(what) + ": " + std::to_string(body_.size() - at_) +
                                   " bytes left over in a body of " + std::to_string(body_.size())};
    }
    return Status::Ok();
  }

 private:
  std::span<const std::byte> body_;
  std::size_t at_ = 0;
  bool bad_ = false;
};

}  // namespace sparsefleet
