// Client commands, as the program running a server takes and answers them.
#include "bind_command.h"

#include <nanobind/stl/string.h>

#include <cstddef>
#include <string>

#include "bind.h"
#include "raise.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsefleet::python {
namespace {

void Reply(const CommandHandle& handle, const nb::bytes& reply) {
  Command& command = *handle;
  const auto* first = static_cast<const std::byte*>(reply.data());
  Body body(first, first + reply.size());
  Status status;
  {
    nb::gil_scoped_release release;
    status = command.Reply(std::move(body));
  }
  Check(status);
}

// Converts any text to UTF-8: messages quote what others sent, such as half of a surrogate pair.
std::string Utf8Of(const nb::str& text) {
  const auto bytes =
      nb::steal<nb::bytes>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
  if (!bytes.is_valid()) throw nb::python_error();
  return {bytes.c_str(), bytes.size()};
}

void Fail(const CommandHandle& handle, const std::string& code, const nb::str& text) {
  Command& command = *handle;
  std::string message = Utf8Of(text);
  const auto found = CodeNamed(code);
  if (!found || *found == Code::kOk) {
    Raise(Status(Code::kInvalidArgument,
                 "code must be the name of an error, such as 'NOT_FOUND', got '" + code + "'"));
  }
  nb::gil_scoped_release release;
  command.Fail(Status(*found, std::move(message)));
}

}  // namespace

CommandHandle::~CommandHandle() {
  if (owner_.IsForked()) {
    Leak(std::move(command_));
    return;
  }
  nb::gil_scoped_release release;
  command_.reset();
}

void BindCommand(nb::module_& m) {
  nb::class_<CommandHandle>(m, "Command",
                            "A client's request to the program running the server. It fails if "
                            "dropped without an answer.")
      .def_prop_ro(
          "name", [](const CommandHandle& h) { return ReadableText((*h).name()); },
          nb::sig("def name(self) -> str"))
      .def_prop_ro(
          "client", [](const CommandHandle& h) { return ReadableText((*h).client()); },
          nb::sig("def client(self) -> str"), "The name of the client that sent it.")
      .def_prop_ro(
          "session", [](const CommandHandle& h) { return (*h).session(); },
          "The number of that client's session, unique on this server.")
      .def_prop_ro(
          "body",
          [](const CommandHandle& h) {
            const auto body = (*h).body();
            return nb::bytes(body.data(), body.size());
          },
          "A copy of what the client sent.")
      .def("reply", &Reply, "body"_a,
           "Sends the answer. Raises if it was already answered, or if the body exceeds the "
           "server's "
           "limit, which the client learns too.")
      .def(
          "fail", &Fail, "code"_a, "message"_a,
          "Answers with an error, named by its code in docs/wire_format.md. Does nothing if it was "
          "already answered.");
}

}  // namespace sparsefleet::python
