// Commands from a client through a real server to the program running it.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/client.h"
#include "store/local_store.h"
#include "testing/check.h"
#include "testing/test_server.h"

namespace sparsefleet::testing {
namespace {

constexpr double kTimeout_s = 20;

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }
std::string TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Answers commands with "<name>:<body>", "fail" with an error and "drop" not at all.
class Program {
 public:
  explicit Program(Server& server)
      : thread_([this, &server] {
          for (;;) {
            auto command = server.NextCommand(kTimeout_s);
            if (!command.ok()) return;
            if (command.value() != nullptr) Answer(*command.value());
          }
        }) {}
  int handled() const { return handled_; }

 private:
  void Answer(Command& command) {
    ++handled_;
    if (command.name() == "drop") return;
    if (command.name() == "fail") return command.Fail({Code::kNotFound, "no such thing"});
    const std::string text = command.name() + ":" + TextOf(command.body());
    (void)command.Reply({BytesOf(text).begin(), BytesOf(text).end()});
  }
  std::atomic<int> handled_{0};
  std::jthread thread_;
};

std::unique_ptr<Client> NewClient(const TestServer& server, std::uint64_t max_frame = 1 << 20) {
  ClientOptions options;
  options.endpoints = {"127.0.0.1:" + std::to_string(server.server->port())};
  options.security = server.security;
  options.name = "worker-7";
  options.max_frame_bytes = max_frame;
  return RequireOk(Client::Connect(std::move(options)));
}

Body Request(const std::string& name) { return Encode(CommandRequest{name, BytesOf("body")}); }

std::unique_ptr<Command> Take(Server& server) {
  auto command = RequireOk(server.NextCommand(kTimeout_s));
  Require(command != nullptr, "no command arrived");
  return command;
}

const Test kAnswers("a command returns the program's answer or error", [] {
  TestServer server;
  auto client = NewClient(server);
  {
    const Program program(*server.server);
    const auto reply = RequireOk(client->Command(0, "echo", BytesOf("hello"), kTimeout_s));
    ExpectEqual(TextOf(reply), std::string("echo:hello"));
    const std::string large(200'000, 'x');
    ExpectEqual(RequireOk(client->Command(0, "large", BytesOf(large), kTimeout_s)).size(),
                large.size() + 6);
    const Status failed = client->Command(0, "fail", {}, kTimeout_s).status();
    ExpectCode(failed, Code::kNotFound);
    Expect(failed.message().find("server 0") != std::string::npos, failed.message());
    Expect(failed.message().find("no such thing") != std::string::npos, failed.message());
    ExpectCode(client->Command(0, "drop", {}, kTimeout_s).status(), Code::kInternal);
    server.server->Stop();
  }
  ExpectCode(client->Command(1, "echo", {}, kTimeout_s).status(), Code::kInvalidArgument);
  ExpectCode(client->Command(0, "", {}, kTimeout_s).status(), Code::kInvalidArgument);
  ExpectCode(LocalStore().Command(0, "echo", {}, kTimeout_s).status(), Code::kInvalidArgument);
});

const Test kName("the program learns who sent a command", [] {
  TestServer server;
  auto client = NewClient(server);
  std::thread caller([&] { RequireOk(client->Command(0, "who", {}, kTimeout_s)); });
  const auto command = Take(*server.server);
  ExpectEqual(command->client(), std::string("worker-7"));
  RequireOk(command->Reply({}));
  caller.join();
});

const Test kLimits("requests and replies over the limit are kTooLarge, and nothing breaks", [] {
  ServerOptions options;
  options.max_frame_bytes = 4096;
  TestServer server(options);
  auto client = NewClient(server);
  const std::string large(5000, 'x');
  {
    const Program program(*server.server);
    ExpectCode(client->Command(0, "echo", BytesOf(large), kTimeout_s).status(), Code::kTooLarge);
    const std::string fits(4060, 'x');  // the reply has 4065 bytes, the request 16 more
    ExpectEqual(RequireOk(client->Command(0, "echo", BytesOf(fits), kTimeout_s)).size(), 4065u);
    ExpectEqual(program.handled(), 1);
    server.server->DrainCommands();
  }
  ExpectCode(client->Command(0, "echo", {}, kTimeout_s).status(), Code::kShuttingDown);
});

const Test kCut("a command whose connection breaks at any point is handled once", [] {
  TestServer server;
  // Broken while it is handled: the retry gets the answer.
  server.Join(7, "worker-7")->Request(MessageType::kCommand, Request("one"), 1);
  const auto first = Take(*server.server);
  auto retry = server.Join(7, "worker-7");
  retry->Request(MessageType::kCommand, Request("one"), 1);
  const auto again = RequireOk(server.server->NextCommand(0.05));
  Expect(again == nullptr, "a retry is no second command");
  RequireOk(first->Reply(Body(3)));
  ExpectEqual(retry->ReadReply().body.size(), 3u);
  // Broken after it was answered: the answer is remembered.
  auto later = server.Join(7, "worker-7");
  ExpectEqual(later->Call(MessageType::kCommand, Request("one"), 1).body.size(), 3u);
  Expect(RequireOk(server.server->NextCommand(0.05)) == nullptr, "nor is a later one");
  // Another sequence is another command.
  later->Request(MessageType::kCommand, Request("two"), 2);
  ExpectEqual(Take(*server.server)->name(), std::string("two"));
  ExpectCode(later->ReadReply().status, Code::kInternal);
});

const Test kGone("the answer to a disconnected client is discarded", [] {
  TestServer server;
  auto client = server.Join(7, "worker-7");
  client->Request(MessageType::kCommand, Request("one"), 1);
  const auto command = Take(*server.server);
  client->Call(MessageType::kGoodbye, {});
  client->Close();
  RequireOk(command->Reply(Body(3)));
});

const Test kDeadline("a command that nobody takes ends in time and says so", [] {
  TestServer server;
  auto client = NewClient(server);
  const Status status = client->Command(0, "lonely", {}, 0.3).status();
  ExpectCode(status, Code::kDeadlineExceeded);
  Expect(status.message().find("was not taken") != std::string::npos, status.message());
  Expect(RequireOk(server.server->NextCommand(0)) == nullptr, "it is not handed out later");
});

const Test kStop("a server that stops fails waiting and unanswered commands", [] {
  TestServer server;
  auto waits = server.Join(1, "waits");
  auto taken = server.Join(2, "taken");
  taken->Request(MessageType::kCommand, Request("taken"), 1);
  const auto command = Take(*server.server);
  waits->Request(MessageType::kCommand, Request("waits"), 1);
  // The reply to a later request on this connection shows that the command is in the queue.
  waits->Call(MessageType::kStats, {});
  server.server->Stop();
  ExpectCode(waits->ReadReply().status, Code::kShuttingDown);
  ExpectCode(taken->ReadReply().status, Code::kShuttingDown);
  ExpectCode(server.server->NextCommand(kTimeout_s).status(), Code::kShuttingDown);
  server.server.reset();
  ExpectCode(command->Reply({}), Code::kShuttingDown);  // too late
});

}  // namespace
}  // namespace sparsefleet::testing

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
