// The Python wrapper of a Command.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "owner_process.h"
#include "server/command_queue.h"

namespace sparsefleet::python {

class CommandHandle {
 public:
  explicit CommandHandle(std::unique_ptr<Command> command) : command_(std::move(command)) {}
  CommandHandle(const CommandHandle&) = delete;
  CommandHandle& operator=(const CommandHandle&) = delete;
  // An unanswered command fails, which sends a reply; a fork must not do that.
  ~CommandHandle();

  Command& operator*() const {
    owner_.Check("command");
    return *command_;
  }

 private:
  OwnerProcess owner_;
  std::unique_ptr<Command> command_;
};

}  // namespace sparsefleet::python
