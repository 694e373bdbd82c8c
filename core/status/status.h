// The outcome of an operation: a code for programs and a message for people.
//
// Core functions return Status or Result<T>; they never abort and never throw
// for bad input. The binding turns a code into the Python exception class.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace sparsefleet {

// Format: the numbers travel in error frames (docs/wire_format.md); append only.
enum class Code : std::uint16_t {
  kOk = 0,
  kInvalidArgument = 1,   // a value no table or request can accept
  kUnknownTable = 2,      // no table of that name
  kTableConflict = 3,     // a table of that name exists with another spec
  kShapeMismatch = 4,     // wrong width, or keys and values of different length
  kNonFinite = 5,         // NaN or infinity where the policy is to raise
  kDeadlineExceeded = 6,  // the wait ended before the event
  kPeerLost = 7,          // the other side is gone or silent
  kAuthFailed = 8,        // the peer did not prove the job key
  kProtocol = 9,          // bytes that are not a legal frame or body
  kVersionMismatch = 10,  // the peer speaks another protocol version
  kTooLarge = 11,         // over a stated limit
  kNotFound = 12,         // no such note, cut or file
  kShuttingDown = 13,     // the server is draining and accepts no more work
  kServerRestarted = 14,  // the server came back without the tables it had
  kIo = 15,               // a system call on a file or socket failed
  kCorrupt = 16,          // a file whose checksum or structure is wrong
  kInternal = 17,         // a defect in sparsefleet itself
  kCheckpoint = 18,       // saved tables that cannot be written or do not fit
  kNotOwner = 19,         // the rank, mailbox or list belongs to another live client
  kAnswerLost = 20,       // the request was applied, but its answer is no longer available
  kDiskFull = 21,         // a file cannot grow: no space, a quota or a limit
};

// "UNKNOWN_TABLE" for kUnknownTable, and so on; "CODE_99" for a number not listed.
std::string CodeName(Code code);
// The inverse; nothing for an unknown name.
std::optional<Code> CodeNamed(std::string_view name);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return {}; }

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same status with `prefix` before its message; ok stays ok.
  Status WithPrefix(std::string_view prefix) const;

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

// A value, or the status that explains why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : held_(std::move(value)) {}         // NOLINT: implicit by design
  Result(Status status) : held_(std::move(status)) {}  // NOLINT

  bool ok() const { return std::holds_alternative<T>(held_); }
  Status status() const { return ok() ? Status::Ok() : std::get<Status>(held_); }

  // REQUIRES: ok().
  T& value() & { return std::get<T>(held_); }
  const T& value() const& { return std::get<T>(held_); }
  T&& value() && { return std::get<T>(std::move(held_)); }

 private:
  std::variant<T, Status> held_;
};

}  // namespace sparsefleet
