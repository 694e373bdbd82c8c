// The OpenSSL objects shared by all TLS channels of a job: settings, the key, the socket BIO.
#pragma once

#include <openssl/bio.h>
#include <openssl/ssl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "status/status.h"
#include "transport/channel_kinds.h"
#include "transport/key_proof.h"

namespace sparsefleet {

// A BIO's view of its socket. Lives in the channel.
struct TlsSocket {
  int fd = -1;
  // Suppresses the alert that OpenSSL would send first: a server does not even tell an
  // unauthenticated peer why it was refused.
  bool hide_first_alert = false;
  bool heard_peer = false;
  bool ended = false;  // the peer ended its stream
  int error = 0;       // errno of the call that broke the connection
  // While set, records are collected in `outbox` instead of being sent one by one: a system call,
  // and a wake-up of the peer, per record costs more than the copy.
  bool gathers = false;
  std::vector<std::byte> outbox;
};

// Thread-safe once created. Channels keep it alive: a BIO does not own its method.
class TlsContext {
 public:
  static Result<std::shared_ptr<TlsContext>> Create(const std::string& job_key);

  // A connection over `socket`, whose address must not change.
  Result<SSL*> NewConnection(Side side, TlsSocket& socket) const;  // the caller frees

 private:
  struct CtxDeleter {
    void operator()(SSL_CTX* ctx) const { SSL_CTX_free(ctx); }
  };
  struct MethodDeleter {
    void operator()(BIO_METHOD* method) const { BIO_meth_free(method); }
  };
  using Ctx = std::unique_ptr<SSL_CTX, CtxDeleter>;

  TlsContext() = default;
  Status Configure(SSL_CTX* ctx);
  static SSL_SESSION* NewPskSession(SSL* ssl);
  static int UsePsk(SSL* ssl, const EVP_MD* md, const unsigned char** identity,
                    std::size_t* identity_bytes, SSL_SESSION** session);
  static int FindPsk(SSL* ssl, const unsigned char* identity, std::size_t identity_bytes,
                     SSL_SESSION** session);

  Digest psk_{};
  Ctx server_;
  Ctx client_;
  std::unique_ptr<BIO_METHOD, MethodDeleter> bio_method_;
};

// Takes the first error off this thread's OpenSSL queue and clears the queue; "" if there is none.
std::string TakeOpenSslError();

// Whether the oldest error of this thread is OpenSSL's own, such as a failed allocation, and not
// about what the peer has sent.
bool IsOwnOpenSslFailure();

}  // namespace sparsefleet
