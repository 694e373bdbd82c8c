// Server: started by its constructor, ended by stop() or when it is dropped.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include "bind.h"
#include "bind_command.h"
#include "log_callback.h"
#include "owner_process.h"
#include "raise.h"
#include "server/server.h"
#include "store_handle.h"
#include "transport_name.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsefleet::python {
namespace {

// Joins its threads without the GIL, which their log lines may need.
class ServerHandle {
 public:
  ServerHandle(std::unique_ptr<Server> server, LogCallback log)
      : server_(std::move(server)), log_(std::move(log)) {}
  ServerHandle(const ServerHandle&) = delete;
  ServerHandle& operator=(const ServerHandle&) = delete;
  ~ServerHandle() {
    if (owner_.IsForked()) {
      Leak(std::move(server_));
      return;
    }
    nb::gil_scoped_release release;
    server_.reset();
  }
  Server& operator*() const {
    owner_.Check("server");
    return *server_;
  }

  void Stop() {
    owner_.Check("server");
    {
      nb::gil_scoped_release release;
      server_->Stop();
    }
    log_.Clear();
  }

 private:
  OwnerProcess owner_;
  std::unique_ptr<Server> server_;
  LogCallback log_;
};

ServerHandle* Start(std::string host, std::uint16_t port, nb::bytes job_key,
                    const std::string& transport, std::uint32_t index, std::uint32_t num_servers,
                    std::uint32_t num_threads, std::uint64_t max_frame_bytes, double peer_timeout_s,
                    double handshake_timeout_s, double frame_timeout_s, double drain_timeout_s,
                    const std::map<std::string, nb::bytes>& notes, nb::object log) {
  ServerOptions options;
  options.host = std::move(host);
  options.port = port;
  options.security.job_key = std::string(job_key.c_str(), job_key.size());
  options.security.transport = TransportOf(transport);
  options.index = index;
  options.num_servers = num_servers;
  options.num_threads = num_threads;
  options.max_frame_bytes = max_frame_bytes;
  options.peer_timeout_s = peer_timeout_s;
  options.handshake_timeout_s = handshake_timeout_s;
  options.frame_timeout_s = frame_timeout_s;
  options.drain_timeout_s = drain_timeout_s;
  for (const auto& [key, value] : notes) {
    options.notes.emplace(key, std::string(value.c_str(), value.size()));
  }
  LogCallback callback(std::move(log));
  options.log = callback.function();
  Result<std::unique_ptr<Server>> server = Status(Code::kInternal, "not started");
  {
    nb::gil_scoped_release release;
    server = Server::Start(std::move(options));
  }
  return new ServerHandle(Check(std::move(server)), std::move(callback));
}

nb::object NextCommand(const ServerHandle& handle, double timeout_s) {
  Server& server = *handle;
  Result<std::unique_ptr<Command>> command = std::unique_ptr<Command>();
  {
    nb::gil_scoped_release release;
    command = server.NextCommand(timeout_s);
  }
  auto taken = Check(std::move(command));
  if (taken == nullptr) return nb::none();
  return nb::cast(new CommandHandle(std::move(taken)), nb::rv_policy::take_ownership);
}

}  // namespace

void BindServer(nb::module_& m) {
  nb::class_<ServerHandle>(m, "Server", "Tables behind a listening socket.")
      .def(nb::new_(&Start), nb::kw_only(), "host"_a, "port"_a, "job_key"_a, "transport"_a,
           "index"_a, "num_servers"_a, "num_threads"_a, "max_frame_bytes"_a, "peer_timeout_s"_a,
           "handshake_timeout_s"_a, "frame_timeout_s"_a, "drain_timeout_s"_a, "notes"_a,
           "log"_a.none())
      .def_prop_ro("port", [](const ServerHandle& h) { return (*h).port(); })
      .def(
          "has_client",
          [](const ServerHandle& h, const std::string& name) { return (*h).HasClient(name); },
          "name"_a, "Whether a client of this name has come, and has neither gone nor been lost.")
      .def("stats", [](const ServerHandle& h) { return (*h).Stats(); })
      .def(
          "wait_for_shutdown_request",
          [](const ServerHandle& h, double timeout_s) {
            nb::gil_scoped_release release;
            return (*h).WaitForShutdownRequest(timeout_s);
          },
          "timeout_s"_a)
      .def(
          "tables", [](const ServerHandle& h) { return new StoreHandle((*h).TablesAsStore()); },
          "What this server holds of the tables, as a store in this process.")
      .def("next_command", &NextCommand, "timeout_s"_a,
           nb::sig("def next_command(self, timeout_s: float) -> Command | None"),
           "The next command of a client, or None after `timeout_s`; raises once drained.")
      .def(
          "drain_commands",
          [](const ServerHandle& h) {
            nb::gil_scoped_release release;
            (*h).DrainCommands();
          },
          "No further commands are handed out; those that wait, and new ones, fail.")
      .def("stop", &ServerHandle::Stop);
}

}  // namespace sparsefleet::python
