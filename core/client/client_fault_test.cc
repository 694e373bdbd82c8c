// The client against servers that break, lie or fall silent.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "testing/check.h"
#include "testing/fake_server.h"

namespace sparsefleet::testing {
namespace {

using Kind = Act::Kind;

// Records log lines; tests wait for one to appear.
class LogBook {
 public:
  std::function<void(int, const std::string&)> Sink() {
    return [this](int, const std::string& message) {
      std::lock_guard lock(mutex_);
      lines_.push_back(message);
      changed_.notify_all();
    };
  }
  bool Await(const std::string& text, double seconds = 20) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                             [&] { return Count(text) > 0; });
  }
  int CountOf(const std::string& text) {
    std::lock_guard lock(mutex_);
    return Count(text);
  }

 private:
  int Count(const std::string& text) const {
    return static_cast<int>(std::ranges::count_if(
        lines_, [&](const std::string& line) { return line.find(text) != std::string::npos; }));
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
};

ClientOptions Options(const std::vector<const FakeServer*>& servers) {
  ClientOptions options;
  for (const auto* server : servers) options.endpoints.push_back(server->endpoint());
  options.security = Security(TransportKind::kPlain);
  options.connect_timeout_s = 20;
  options.first_backoff_s = 0.001;
  return options;
}

// Replies to everything, counting pushes as a table would: once per sequence.
class CountingScript {
 public:
  Act Answer(const FrameHeader& header) {
    std::lock_guard lock(mutex_);
    ++requests_[header.type];
    if (header.type == MessageType::kTableInfo) {
      TableInfo info;
      info.dim = 2;
      return Act::Reply(Encode(info));
    }
    if (header.type == MessageType::kPush && sequences_.insert({header.sequence, 1}).second) {
      ++applied_;
    }
    if (header.type == MessageType::kPush) return Act::Reply(Encode(PushResult{1, 0, 0}));
    return Act::Reply();
  }
  int requests(MessageType type) {
    std::lock_guard lock(mutex_);
    return requests_[type];
  }
  int applied() {
    std::lock_guard lock(mutex_);
    return applied_;
  }

 private:
  std::mutex mutex_;
  std::map<MessageType, int> requests_;
  std::map<std::uint64_t, int> sequences_;
  int applied_ = 0;
};

Result<PushResult> PushOne(Client& client, double timeout_s = 20) {
  static const Key kKey = 5;
  static const float kGradient[] = {1.0f, 2.0f};
  PushSection section;
  section.table = "ads";
  section.keys = {&kKey, 1};
  section.gradients = kGradient;
  return client.Push({&section, 1}, 0, timeout_s);
}

bool Has(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

const Test kLostReply("a push whose reply is lost is sent again under its sequence", [] {
  for (const auto kind : {Kind::kClose, Kind::kCloseInFrame}) {
    CountingScript script;
    std::atomic<int> pushes{0};
    FakeServer server([&](const FrameHeader& header, auto) {
      Act act = script.Answer(header);
      if (header.type == MessageType::kPush && ++pushes <= 2) act.kind = kind;
      return act;
    });
    auto client = RequireOk(Client::Connect(Options({&server})));
    ExpectEqual(RequireOk(PushOne(*client)).applied, 1u);
    ExpectEqual(script.requests(MessageType::kPush), 3);
    ExpectEqual(script.applied(), 1);
    RequireOk(PushOne(*client).status());
    ExpectEqual(script.applied(), 2);
  }
});

const Test kOnlyFailed("only the server that did not reply is asked again", [] {
  CountingScript scripts[2];
  std::atomic<int> pushes{0};
  FakeServer good([&](const FrameHeader& header, auto) { return scripts[0].Answer(header); });
  FakeServer bad([&](const FrameHeader& header, auto) {
    Act act = scripts[1].Answer(header);
    if (header.type == MessageType::kPush && ++pushes == 1) act.kind = Kind::kClose;
    return act;
  });
  auto client = RequireOk(Client::Connect(Options({&good, &bad})));
  RequireOk(PushOne(*client).status());
  ExpectEqual(scripts[0].requests(MessageType::kPush), 1);
  ExpectEqual(scripts[1].requests(MessageType::kPush), 2);
});

const Test kTryTimeout("an unanswered try is abandoned and repeated", [] {
  CountingScript script;
  std::atomic<int> pushes{0};
  FakeServer server([&](const FrameHeader& header, auto) {
    Act act = script.Answer(header);
    if (header.type == MessageType::kPush && ++pushes == 1) act.kind = Kind::kSilence;
    return act;
  });
  auto options = Options({&server});
  options.try_timeout_s = 0.1;
  auto client = RequireOk(Client::Connect(options));
  RequireOk(PushOne(*client).status());
  ExpectEqual(script.applied(), 1);
});

const Test kDeadline("a call that never gets an answer names server, time, tries and cause", [] {
  CountingScript script;
  FakeServer server([&](const FrameHeader& header, auto) {
    return header.type == MessageType::kPush ? Act::Only(Kind::kSilence) : script.Answer(header);
  });
  auto options = Options({&server});
  options.try_timeout_s = 0.1;
  auto client = RequireOk(Client::Connect(options));
  const Status status = PushOne(*client, 1.0).status();
  ExpectCode(status, Code::kDeadlineExceeded);
  Expect(Has(status, "table 'ads': push to server 0 (" + server.endpoint() + ") timed out after"),
         status.message());
  Expect(Has(status, "tries: no answer within try_timeout_s"), status.message());
});

const Test kGarbage("an invalid frame is kProtocol and is not retried", [] {
  CountingScript script;
  FakeServer server([&](const FrameHeader& header, auto) {
    const Act act = script.Answer(header);
    return header.type == MessageType::kPush ? Act::Only(Kind::kGarbage) : act;
  });
  auto client = RequireOk(Client::Connect(Options({&server})));
  ExpectCode(PushOne(*client).status(), Code::kProtocol);
  ExpectEqual(script.requests(MessageType::kPush), 1);
});

const Test kErrorReply("an error reply keeps its code, names the server, is not retried", [] {
  CountingScript script;
  FakeServer server([&](const FrameHeader& header, auto) {
    const Act act = script.Answer(header);
    if (header.type != MessageType::kPush) return act;
    return Act::Error(Code::kShuttingDown, "draining");
  });
  auto client = RequireOk(Client::Connect(Options({&server})));
  const Status status = PushOne(*client).status();
  ExpectCode(status, Code::kShuttingDown);
  Expect(Has(status, "push to server 0 (" + server.endpoint() + "): draining"), status.message());
  ExpectEqual(script.requests(MessageType::kPush), 1);
});

const Test kAnswerLost("a push that was applied, but whose answer is gone, has succeeded", [] {
  CountingScript scripts[2];
  const Body rows(2 * sizeof(float), std::byte{0});
  const auto answer = [&](CountingScript& script, const FrameHeader& header) {
    return header.type == MessageType::kPull ? Act::Reply(rows) : script.Answer(header);
  };
  FakeServer good([&](const FrameHeader& header, auto) { return answer(scripts[0], header); });
  FakeServer bad([&](const FrameHeader& header, auto) {
    const Act act = answer(scripts[1], header);
    return header.type == MessageType::kPush ? Act::Error(Code::kAnswerLost, "applied") : act;
  });
  auto client = RequireOk(Client::Connect(Options({&good, &bad})));
  ExpectEqual(RequireOk(PushOne(*client)).applied, 1u);  // what is known
  ExpectEqual(scripts[1].requests(MessageType::kPush), 1);
});

const Test kWrongReply("a reply of the wrong size is kProtocol", [] {
  CountingScript script;
  FakeServer server([&](const FrameHeader& header, auto) {
    return header.type == MessageType::kPull ? Act::Reply(Body(12)) : script.Answer(header);
  });
  auto client = RequireOk(Client::Connect(Options({&server})));
  const Key key = 5;
  float out[2];
  PullSection section{"ads", {&key, 1}, out, false, 0};
  ExpectCode(client->Pull({&section, 1}, PullMode::kTrain, 0, 20), Code::kProtocol);
});

const Test kRestart("a restarted server is kServerRestarted and is named", [] {
  CountingScript script;
  FakeServer server([&](const FrameHeader& header, auto) { return script.Answer(header); });
  LogBook log;
  auto options = Options({&server});
  options.log = log.Sink();
  auto client = RequireOk(Client::Connect(options));
  RequireOk(PushOne(*client).status());
  server.incarnation = 78;
  server.CloseAll();
  const Status status = PushOne(*client).status();
  ExpectCode(status, Code::kServerRestarted);
  Expect(Has(status, server.endpoint()), status.message());
  ExpectEqual(script.applied(), 1);
  Expect(log.Await("restarted"));
});

const Test kSameLife("a server that cut its connections is used again silently", [] {
  CountingScript script;
  FakeServer server([&](const FrameHeader& header, auto) { return script.Answer(header); });
  auto client = RequireOk(Client::Connect(Options({&server})));
  for (int i = 1; i <= 5; ++i) {
    RequireOk(PushOne(*client).status());
    ExpectEqual(script.applied(), i);
    server.CloseAll();
  }
});

const Test kVersion("a server of another version is kVersionMismatch immediately", [] {
  FakeServer server([](const FrameHeader&, auto) { return Act::Reply(); });
  server.version = 9;
  const auto client = Client::Connect(Options({&server}));
  ExpectCode(client.status(), Code::kVersionMismatch);
  Expect(Has(client.status(), server.endpoint()));
  ExpectEqual(server.greetings.load(), 1);
});

const Test kWrongKey("a wrong key is kAuthFailed long before the connect deadline", [] {
  FakeServer server([](const FrameHeader&, auto) { return Act::Reply(); });
  auto options = Options({&server});
  options.connect_timeout_s = 3600;
  options.security.job_key = "some other key, long enough";
  const Status status = Client::Connect(options).status();
  ExpectCode(status, Code::kAuthFailed);
  Expect(Has(status, "SPARSEFLEET_JOB_KEY") && Has(status, server.endpoint()), status.message());
});

const Test kNobody("nobody at an endpoint is kDeadlineExceeded naming it", [] {
  std::string endpoint;
  {
    FakeServer gone([](const FrameHeader&, auto) { return Act::Reply(); });
    endpoint = gone.endpoint();
  }
  FakeServer here([](const FrameHeader&, auto) { return Act::Reply(); });
  auto options = Options({&here});
  options.endpoints.push_back(endpoint);
  options.connect_timeout_s = 1.0;  // in which the other one is reached
  const Status status = Client::Connect(options).status();
  ExpectCode(status, Code::kDeadlineExceeded);
  Expect(Has(status, "server 1 (" + endpoint + ")"), status.message());
});

const Test kLost("a silent server is lost after the peer timeout; long waits end; it comes back",
                 [] {
                   CountingScript script;
                   FakeServer server([&](const FrameHeader& header, auto) {
                     return header.type == MessageType::kBarrier ? Act::Only(Kind::kSilence)
                                                                 : script.Answer(header);
                   });
                   LogBook log;
                   auto options = Options({&server});
                   options.log = log.Sink();
                   options.heartbeat_interval_s = 0.05;
                   options.peer_timeout_s = 1.0;
                   auto client = RequireOk(Client::Connect(options));
                   server.answers = false;
                   const Status status = client->Barrier("epoch", 2, 3600);
                   ExpectCode(status, Code::kPeerLost);
                   Expect(Has(status, "silent for") && Has(status, server.endpoint()),
                          status.message());
                   Expect(log.Await("is lost"));  // calls may end before it is written
                   ExpectCode(PushOne(*client, 3600).status(), Code::kPeerLost);
                   server.answers = true;
                   server.CloseAll();
                   Expect(log.Await("is back"));
                   RequireOk(PushOne(*client).status());
                   ExpectEqual(log.CountOf("is lost"), 1);
                 });

const Test kLateServer("the wait for a late server is not silence of those that came before it",
                       [] {
                         const auto end =
                             std::chrono::steady_clock::now() + std::chrono::milliseconds(1300);
                         FakeServer late([&](const FrameHeader&, auto) {
                           return std::chrono::steady_clock::now() < end ? Act::Only(Kind::kClose)
                                                                         : Act::Reply();
                         });
                         std::atomic<int> beats = 0;
                         FakeServer early([&](const FrameHeader&, auto) {
                           ++beats;
                           beats.notify_all();
                           return Act::Reply();
                         });
                         LogBook log;
                         auto options = Options({&late, &early});
                         options.log = log.Sink();
                         options.heartbeat_interval_s = 0.02;
                         options.peer_timeout_s = 1.0;
                         auto client = RequireOk(Client::Connect(options));
                         for (int seen = beats; seen < 5; seen = beats) beats.wait(seen);
                         ExpectEqual(log.CountOf("is lost"), 0);
                       });

const Test kDeadBeat("a heartbeat whose connection died silently is sent over another one", [] {
  CountingScript script;
  std::mutex mutex;
  std::condition_variable changed;
  int beats = 0;
  FakeServer server([&](const FrameHeader& header, auto) {
    std::lock_guard lock(mutex);
    changed.notify_all();
    // The first is from Connect(), the second is the first on the control connection.
    const bool is_unheard = header.type == MessageType::kHeartbeat && ++beats == 3;
    return is_unheard ? Act::Only(Kind::kSilence) : script.Answer(header);
  });
  LogBook log;
  auto options = Options({&server});
  options.log = log.Sink();
  options.heartbeat_interval_s = 0.05;
  options.peer_timeout_s = 3.0;
  auto client = RequireOk(Client::Connect(options));
  {
    std::unique_lock lock(mutex);
    Require(changed.wait_for(lock, std::chrono::seconds(20), [&] { return beats > 5; }));
  }
  ExpectEqual(log.CountOf("is lost"), 0);
  RequireOk(PushOne(*client).status());
});

const Test kBarrierRetry("a barrier whose connection broke is joined again under its sequence", [] {
  CountingScript script;
  std::mutex mutex;
  std::vector<std::uint64_t> sequences;
  FakeServer server([&](const FrameHeader& header, auto) {
    if (header.type != MessageType::kBarrier) return script.Answer(header);
    std::lock_guard lock(mutex);
    sequences.push_back(header.sequence);
    return sequences.size() < 3 ? Act::Only(Kind::kClose) : Act::Reply();
  });
  auto client = RequireOk(Client::Connect(Options({&server})));
  RequireOk(client->Barrier("epoch", 2, 20));
  Require(sequences.size() == 3);
  Expect(sequences[0] > 0 && sequences[0] == sequences[1] && sequences[1] == sequences[2]);
});

const Test kAcks("received replies are acknowledged with the next request", [] {
  CountingScript script;
  std::mutex mutex;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> seen;
  FakeServer server([&](const FrameHeader& header, auto) {
    if (header.type == MessageType::kPush) {
      std::lock_guard lock(mutex);
      seen.push_back({header.sequence, header.acked_below});
    }
    return script.Answer(header);
  });
  auto client = RequireOk(Client::Connect(Options({&server})));
  for (int i = 0; i < 3; ++i) RequireOk(PushOne(*client).status());
  Require(seen.size() == 3);
  for (const auto& [sequence, acked_below] : seen) ExpectEqual(acked_below, sequence);
  Expect(seen[0].first < seen[1].first && seen[1].first < seen[2].first);
});

const Test kOwnWindow("a barrier that stays open does not delay acknowledgement of pushes", [] {
  CountingScript script;
  std::mutex mutex;
  std::condition_variable changed;
  bool waits = false;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> seen;
  FakeServer server([&](const FrameHeader& header, auto) {
    std::lock_guard lock(mutex);
    if (header.type == MessageType::kBarrier) {
      waits = true;
      changed.notify_all();
      return Act::Only(Kind::kSilence);
    }
    if (header.type == MessageType::kPush) seen.push_back({header.sequence, header.acked_below});
    return script.Answer(header);
  });
  auto client = RequireOk(Client::Connect(Options({&server})));
  std::jthread waiter([&] { ExpectCode(client->Barrier("b", 2, 1.0), Code::kDeadlineExceeded); });
  {
    std::unique_lock lock(mutex);
    Require(changed.wait_for(lock, std::chrono::seconds(20), [&] { return waits; }));
  }
  for (int i = 0; i < 3; ++i) RequireOk(PushOne(*client).status());
  for (const auto& [sequence, acked_below] : seen) ExpectEqual(acked_below, sequence);
});

const Test kBeatsTell("heartbeats report an abandoned barrier", [] {
  CountingScript script;
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t given_up = 0;
  bool is_told = false;
  FakeServer server([&](const FrameHeader& header, auto) {
    std::lock_guard lock(mutex);
    if (header.type == MessageType::kBarrier) {
      given_up = header.sequence;
      return Act::Only(Kind::kSilence);
    }
    is_told = is_told || (given_up > 0 && header.type == MessageType::kHeartbeat &&
                          header.acked_below > given_up);
    changed.notify_all();
    return script.Answer(header);
  });
  auto options = Options({&server});
  options.heartbeat_interval_s = 0.05;
  auto client = RequireOk(Client::Connect(options));
  ExpectCode(client->Barrier("b", 2, 0.2), Code::kDeadlineExceeded);
  std::unique_lock lock(mutex);
  Expect(changed.wait_for(lock, std::chrono::seconds(20), [&] { return is_told; }));
});

const Test kForgotten("a push is not repeated to a server that has forgotten the client", [] {
  CountingScript script;
  FakeServer* itself = nullptr;
  FakeServer server([&](const FrameHeader& header, auto) {
    Act act = script.Answer(header);
    if (header.type == MessageType::kPush && script.requests(MessageType::kPush) == 1) {
      ++itself->session;
      act.kind = Kind::kClose;
    }
    return act;
  });
  itself = &server;
  auto client = RequireOk(Client::Connect(Options({&server})));
  const Status status = PushOne(*client).status();
  ExpectCode(status, Code::kPeerLost);
  Expect(Has(status, "forgotten") && Has(status, server.endpoint()), status.message());
  ExpectEqual(script.requests(MessageType::kPush), 1);
  RequireOk(PushOne(*client).status());
});

const Test kDeadWait("a barrier whose connection died silently is joined over another one", [] {
  CountingScript script;
  std::atomic<int> barriers{0};
  FakeServer server([&](const FrameHeader& header, auto) {
    const bool is_unheard = header.type == MessageType::kBarrier && ++barriers == 1;
    return is_unheard ? Act::Only(Kind::kSilence) : script.Answer(header);
  });
  LogBook log;
  auto options = Options({&server});
  options.try_timeout_s = 0.2;
  options.log = log.Sink();
  auto client = RequireOk(Client::Connect(options));
  RequireOk(client->Barrier("epoch", 2, 20));
  Expect(barriers.load() >= 2, "more on a machine that is slower than try_timeout_s");
  ExpectEqual(log.CountOf("barrier"), 0);
});

const Test kNames("a name that is not found is kDeadlineExceeded naming the server", [] {
  FakeServer here([](const FrameHeader&, auto) { return Act::Reply(); });
  auto options = Options({&here});
  options.endpoints.push_back("no-such-host.invalid:1");
  options.connect_timeout_s = 1.0;
  const Status status = Client::Connect(options).status();
  ExpectCode(status, Code::kDeadlineExceeded);
  Expect(Has(status, "server 1 (no-such-host.invalid:1)"), status.message());
});

const Test kByName("a server may be given by name", [] {
  FakeServer server([](const FrameHeader&, auto) { return Act::Reply(); });
  auto options = Options({&server});
  options.endpoints[0].replace(0, options.endpoints[0].find(':'), "localhost");
  RequireOk(RequireOk(Client::Connect(options))->PutNote("k", "v", 20));
});

const Test kStuckLog("a log function that does not return delays no heartbeat", [] {
  std::mutex mutex;
  std::condition_variable changed;
  int beats = 0;
  bool is_stuck = false;
  bool may_go = false;
  FakeServer silent([](const FrameHeader&, auto) { return Act::Reply(); });
  FakeServer healthy([&](const FrameHeader& header, auto) {
    std::lock_guard lock(mutex);
    beats += header.type == MessageType::kHeartbeat ? 1 : 0;
    changed.notify_all();
    return Act::Reply();
  });
  auto options = Options({&silent, &healthy});
  options.heartbeat_interval_s = 0.05;
  options.peer_timeout_s = 0.3;
  options.log = [&](int, const std::string& message) {
    std::unique_lock lock(mutex);
    if (message.find("is lost") == std::string::npos) return;
    is_stuck = true;
    changed.notify_all();
    changed.wait_for(lock, std::chrono::seconds(20), [&] { return may_go; });
  };
  auto client = RequireOk(Client::Connect(options));
  silent.answers = false;
  {
    std::unique_lock lock(mutex);
    Require(changed.wait_for(lock, std::chrono::seconds(20), [&] { return is_stuck; }));
    const int before = beats;
    Expect(changed.wait_for(lock, std::chrono::seconds(15), [&] { return beats > before + 3; }));
    may_go = true;
    changed.notify_all();
  }
});

const Test kTooLarge("a push over the server's frame limit is rejected before it is sent", [] {
  CountingScript script;
  FakeServer server([&](const FrameHeader& header, auto) { return script.Answer(header); });
  server.max_frame_bytes = 1000;
  auto client = RequireOk(Client::Connect(Options({&server})));
  std::vector<Key> keys(200);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  std::vector<float> values(400);
  PushSection push{"ads", keys, values, false, false, false};
  const Status status = client->Push({&push, 1}, 0, 20).status();
  ExpectCode(status, Code::kTooLarge);
  Expect(Has(status, "max_frame_bytes is 1000"), status.message());
  ExpectEqual(script.requests(MessageType::kPush), 0);
});

const Test kGoodbye("a client says goodbye when it is destroyed", [] {
  std::mutex mutex;
  std::condition_variable changed;
  int beats = 0;
  int goodbyes = 0;
  FakeServer server([&](const FrameHeader& header, auto) {
    std::lock_guard lock(mutex);
    beats += header.type == MessageType::kHeartbeat ? 1 : 0;
    goodbyes += header.type == MessageType::kGoodbye ? 1 : 0;
    changed.notify_all();
    return Act::Reply(header.type == MessageType::kResume ? Encode(ResumeReply{}) : Body{});
  });
  // Immediately, before the control connection exists, and after its first beat.
  RequireOk(Client::Connect(Options({&server}))).reset();
  ExpectEqual(goodbyes, 1);
  beats = 0;
  auto client = RequireOk(Client::Connect(Options({&server})));
  {
    std::unique_lock lock(mutex);
    // The first beat is from Connect(), the second comes over the control connection.
    Require(changed.wait_for(lock, std::chrono::seconds(20), [&] { return beats >= 2; }));
  }
  client.reset();
  ExpectEqual(goodbyes, 2);
  // Not if another process may continue the session; a client without one has nothing to keep.
  auto options = Options({&server});
  client = RequireOk(Client::Connect(options));
  client->KeepSession(true);
  client.reset();
  ExpectEqual(goodbyes, 3);
  options.session = "job/worker-0";
  client = RequireOk(Client::Connect(options));
  client->KeepSession(true);
  client.reset();
  ExpectEqual(goodbyes, 3);
});

}  // namespace
}  // namespace sparsefleet::testing

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
