// Server: started by its constructor, stopped by stop() or on destruction.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <exception>
#include <span>

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
  ServerHandle(std::unique_ptr<Server> server, LogCallback log, LogCallback write_state)
      : server_(std::move(server)), log_(std::move(log)), write_state_(std::move(write_state)) {}
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
    write_state_.Clear();
  }

 private:
  OwnerProcess owner_;
  std::unique_ptr<Server> server_;
  LogCallback log_;
  LogCallback write_state_;
};

Durability DurabilityOf(const std::string& name) {
  if (name == "off") return Durability::kOff;
  if (name == "process") return Durability::kProcess;
  if (name == "disk") return Durability::kDisk;
  if (name == "replica") return Durability::kReplica;
  Raise(Status(Code::kInvalidArgument,
               "durability must be 'off', 'process', 'disk' or 'replica', got '" + name + "'"));
}

ServerHandle* Start(std::string host, std::uint16_t port, nb::bytes job_key,
                    const std::string& transport, std::uint32_t index, std::uint32_t num_servers,
                    std::uint32_t num_threads, std::uint32_t max_connections,
                    std::uint32_t max_unproven, std::uint32_t max_unproven_per_address,
                    std::uint64_t max_frame_bytes, double peer_timeout_s,
                    double handshake_timeout_s, double frame_timeout_s, double drain_timeout_s,
                    const std::map<std::string, nb::bytes>& notes, nb::object log,
                    const std::string& durability, std::string log_dir,
                    std::uint64_t snapshot_bytes, std::vector<std::string> logged_commands,
                    nb::object write_command_state, std::string replica, double replica_wait_s,
                    std::string replica_dir, bool replica_sync, bool take_over) {
  ServerOptions options;
  options.host = std::move(host);
  options.port = port;
  options.security.job_key = std::string(job_key.c_str(), job_key.size());
  options.security.transport = TransportOf(transport);
  options.index = index;
  options.num_servers = num_servers;
  options.num_threads = num_threads;
  options.max_connections = max_connections;
  options.max_unproven = max_unproven;
  options.max_unproven_per_address = max_unproven_per_address;
  options.max_frame_bytes = max_frame_bytes;
  options.peer_timeout_s = peer_timeout_s;
  options.handshake_timeout_s = handshake_timeout_s;
  options.frame_timeout_s = frame_timeout_s;
  options.drain_timeout_s = drain_timeout_s;
  for (const auto& [key, value] : notes) {
    options.notes.emplace(key, std::string(value.c_str(), value.size()));
  }
  options.durability = DurabilityOf(durability);
  options.log_dir = std::move(log_dir);
  options.snapshot_bytes = snapshot_bytes;
  options.logged_commands = std::move(logged_commands);
  options.replica = std::move(replica);
  options.replica_wait_s = replica_wait_s;
  options.replica_dir = std::move(replica_dir);
  options.replica_sync = replica_sync;
  options.take_over = take_over;
  LogCallback state_callback(std::move(write_command_state));
  if (auto call = state_callback.function()) {
    options.write_command_state = [call] {
      call(0, "");
      return Status::Ok();
    };
  }
  LogCallback callback(std::move(log));
  options.log = callback.function();
  Result<std::unique_ptr<Server>> server = Status(Code::kInternal, "not started");
  {
    nb::gil_scoped_release release;
    server = Server::Start(std::move(options));
  }
  return new ServerHandle(Check(std::move(server)), std::move(callback), std::move(state_callback));
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
  nb::class_<ServerHandle>(m, "Server", "Tables served over a listening socket.")
      .def(nb::new_(&Start), nb::kw_only(), "host"_a, "port"_a, "job_key"_a, "transport"_a,
           "index"_a = 0, "num_servers"_a = 1, "num_threads"_a = 0,
           "max_connections"_a = ServerOptions().max_connections, "max_unproven"_a = 0,
           "max_unproven_per_address"_a = 0, "max_frame_bytes"_a = ServerOptions().max_frame_bytes,
           "peer_timeout_s"_a = ServerOptions().peer_timeout_s,
           "handshake_timeout_s"_a = ServerOptions().handshake_timeout_s,
           "frame_timeout_s"_a = ServerOptions().frame_timeout_s,
           "drain_timeout_s"_a = ServerOptions().drain_timeout_s,
           "notes"_a = std::map<std::string, nb::bytes>(), "log"_a.none() = nb::none(),
           "durability"_a = "off", "log_dir"_a = "",
           "snapshot_bytes"_a = ServerOptions().snapshot_bytes,
           "logged_commands"_a = std::vector<std::string>(),
           "write_command_state"_a.none() = nb::none(), "replica"_a = "",
           "replica_wait_s"_a = ServerOptions().replica_wait_s, "replica_dir"_a = "",
           "replica_sync"_a = true, "take_over"_a = false)
      .def(
          "take_recovered_commands",
          [](const ServerHandle& h) {
            nb::list all;
            for (const RecoveredCommand& one : (*h).TakeRecoveredCommands()) {
              all.append(nb::make_tuple(one.is_state, one.name, ReadableText(one.client),
                                        one.session, nb::bytes(one.body.data(), one.body.size()),
                                        nb::bytes(one.reply.data(), one.reply.size())));
            }
            return all;
          },
          nb::sig("def take_recovered_commands(self) -> list[tuple[bool, str, str, int, bytes, "
                  "bytes]]"),
          "Logged commands recovered at the start: (is a state, name, client, session, body, "
          "reply).")
      .def(
          "append_command_state",
          [](const ServerHandle& h, const std::string& name, const nb::bytes& state) {
            const auto* first = static_cast<const std::byte*>(state.data());
            const std::span<const std::byte> bytes(first, state.size());
            Status status;
            {
              nb::gil_scoped_release release;
              status = (*h).AppendCommandState(name, bytes);
            }
            Check(status);
          },
          "name"_a, "state"_a, "Logs the state that results from the commands of this name.")
      .def(
          "change_in_bulk",
          [](const ServerHandle& h, const nb::callable& change) {
            std::exception_ptr raised;
            Status status;
            {
              nb::gil_scoped_release release;
              status = (*h).ChangeInBulk([&] {
                nb::gil_scoped_acquire gil;
                try {
                  change();
                  return Status::Ok();
                } catch (...) {
                  raised = std::current_exception();
                  return Status(Code::kInternal, "raised");
                }
              });
            }
            if (raised) std::rethrow_exception(raised);
            Check(status);
          },
          "change"_a,
          "Calls `change`, which changes tables without requests; the change is durable when it "
          "returns.")
      .def(
          "snapshot",
          [](const ServerHandle& h) {
            Status status;
            {
              nb::gil_scoped_release release;
              status = (*h).Snapshot();
            }
            Check(status);
          },
          "Writes a snapshot of a durable server, and removes the log before it.")
      .def_prop_ro(
          "failure", [](const ServerHandle& h) -> std::string { return (*h).failure().message(); },
          "Why the server cannot continue; empty if it can.")
      .def_prop_ro("port", [](const ServerHandle& h) { return (*h).port(); })
      .def(
          "has_client",
          [](const ServerHandle& h, const std::string& name) { return (*h).HasClient(name); },
          "name"_a, "Whether a client of this name is connected and not considered lost.")
      .def(
          "has_session",
          [](const ServerHandle& h, std::uint64_t number) { return (*h).HasSession(number); },
          "number"_a, "Whether the client of this session is connected and not considered lost.")
      .def(
          "drop_clients",
          [](const ServerHandle& h, const std::string& name) {
            nb::gil_scoped_release release;
            return (*h).DropClients(name);
          },
          "name"_a, "Counts the clients of this name, which have ended, as lost; returns how many.")
      .def(
          "expect_clients",
          [](const ServerHandle& h, const std::string& name) {
            nb::gil_scoped_release release;
            return (*h).ExpectClients(name);
          },
          "name"_a,
          "Waits longer for clients of this name, which are being restarted; returns how many are "
          "awaited.")
      .def("stats", [](const ServerHandle& h) { return (*h).Stats(); })
      .def(
          "begin_profile",
          [](const ServerHandle& h, std::size_t max_requests) { (*h).spans().Begin(max_requests); },
          "max_requests"_a, "Records the times of up to this many requests from now on.")
      .def(
          "take_profile",
          [](const ServerHandle& h) {
            nb::list all;
            for (const Span& span : (*h).spans().Take()) {
              all.append(nb::make_tuple(MessageName(static_cast<MessageType>(span.type)),
                                        span.thread, span.begin_ns, span.duration_ns));
            }
            return all;
          },
          nb::sig("def take_profile(self) -> list[tuple[str, int, int, int]]"),
          "Ends the recording: (request, thread, begin in ns since 1970, duration in ns).")
      .def(
          "wait_for_shutdown_request",
          [](const ServerHandle& h, double timeout_s) {
            nb::gil_scoped_release release;
            return (*h).WaitForShutdownRequest(timeout_s);
          },
          "timeout_s"_a)
      .def(
          "tables", [](const ServerHandle& h) { return new StoreHandle((*h).TablesAsStore()); },
          "The part of the tables held by this server, as a store in this process.")
      .def("next_command", &NextCommand, "timeout_s"_a,
           nb::sig("def next_command(self, timeout_s: float) -> Command | None"),
           "The next command of a client, or None after `timeout_s`; raises once drained.")
      .def(
          "drain_commands",
          [](const ServerHandle& h) {
            nb::gil_scoped_release release;
            (*h).DrainCommands();
          },
          "Hands out no further commands; waiting and new ones fail.")
      .def("stop", &ServerHandle::Stop);
}

}  // namespace sparsefleet::python
