#include "transport/tls_context.h"

#include <openssl/err.h>

#include <cstring>
#include <string_view>

#include "transport/stream_io.h"

namespace sparsefleet {
namespace {

// Format: docs/wire_format.md.
constexpr std::string_view kIdentity = "sparsefleet";
constexpr std::string_view kPskLabel = "sparsefleet tls 1.3 psk";
constexpr unsigned char kAes128GcmSha256[] = {0x13, 0x01};
constexpr char kAlertRecord = 21;

// Bytes read from the socket at once: four full records (16 KiB of text, 22 bytes around it) and a
// bit.
constexpr std::size_t kReadAheadBytes = 68 << 10;

TlsSocket& SocketOf(BIO* bio) { return *static_cast<TlsSocket*>(BIO_get_data(bio)); }

int BioRead(BIO* bio, char* out, std::size_t size, std::size_t* moved) {
  TlsSocket& socket = SocketOf(bio);
  BIO_clear_retry_flags(bio);
  *moved = 0;
  const IoResult io = ReceiveSome(socket.fd, std::as_writable_bytes(std::span(out, size)));
  switch (io.outcome) {
    case IoOutcome::kMoved:
      socket.heard_peer = true;
      *moved = io.bytes;
      return 1;
    case IoOutcome::kNotReady:
      BIO_set_retry_read(bio);
      break;
    case IoOutcome::kEnd:
      socket.ended = true;
      break;
    case IoOutcome::kBroken:
      socket.error = io.error;
      break;
  }
  return 0;
}

int BioWrite(BIO* bio, const char* data, std::size_t size, std::size_t* moved) {
  TlsSocket& socket = SocketOf(bio);
  BIO_clear_retry_flags(bio);
  *moved = 0;
  if (size == 0) return 1;
  if (socket.hide_first_alert && data[0] == kAlertRecord) {
    *moved = size;
    return 1;
  }
  if (socket.gathers) {
    const auto* bytes = reinterpret_cast<const std::byte*>(data);
    socket.outbox.insert(socket.outbox.end(), bytes, bytes + size);
    *moved = size;
    return 1;
  }
  const iovec buffer{const_cast<char*>(data), size};
  const IoResult io = SendSome(socket.fd, {&buffer, 1});
  if (io.outcome == IoOutcome::kMoved) {
    socket.hide_first_alert = false;
    *moved = io.bytes;
    return 1;
  }
  if (io.outcome == IoOutcome::kNotReady) {
    BIO_set_retry_write(bio);
  } else {
    socket.error = io.error;
  }
  return 0;
}

long BioControl(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_FLUSH) return 1;
  if (command == BIO_CTRL_EOF) return SocketOf(bio).ended ? 1 : 0;
  return 0;
}

int BioCreate(BIO* bio) {
  BIO_set_init(bio, 1);
  return 1;
}

Status Failed(std::string_view what) {
  return {Code::kInternal, "TLS: " + std::string(what) + " failed: " + TakeOpenSslError()};
}

}  // namespace

bool IsOwnOpenSslFailure() {
  const unsigned long code = ERR_peek_error();
  const int library = ERR_GET_LIB(code);
  // What a peer sends wrong is reported by the TLS library itself.
  return ERR_COMMON_ERROR(code) != 0 || library == ERR_LIB_EVP || library == ERR_LIB_CRYPTO;
}

std::string TakeOpenSslError() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return "";
  if (ERR_GET_REASON(code) == ERR_R_MALLOC_FAILURE) return "out of memory";
  const char* reason = ERR_reason_error_string(code);
  return reason == nullptr ? "OpenSSL error " + std::to_string(code) : reason;
}

SSL_SESSION* TlsContext::NewPskSession(SSL* ssl) {
  const auto* self = static_cast<const TlsContext*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
  SSL_SESSION* session = SSL_SESSION_new();
  if (session == nullptr) return nullptr;
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kAes128GcmSha256);
  if (cipher == nullptr || SSL_SESSION_set_cipher(session, cipher) != 1 ||
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1 ||
      SSL_SESSION_set1_master_key(session,
                                  reinterpret_cast<const unsigned char*>(self->psk_.data()),
                                  self->psk_.size()) != 1) {
    SSL_SESSION_free(session);
    return nullptr;
  }
  return session;
}

int TlsContext::UsePsk(SSL* ssl, const EVP_MD* md, const unsigned char** identity,
                       std::size_t* identity_bytes, SSL_SESSION** session) {
  *session = nullptr;
  *identity = nullptr;
  *identity_bytes = 0;
  // A server that requires another hash cannot use our key; the handshake then fails.
  if (md != nullptr && EVP_MD_get_type(md) != NID_sha256) return 1;
  *session = NewPskSession(ssl);
  if (*session == nullptr) return 0;
  *identity = reinterpret_cast<const unsigned char*>(kIdentity.data());
  *identity_bytes = kIdentity.size();
  return 1;
}

int TlsContext::FindPsk(SSL* ssl, const unsigned char* identity, std::size_t identity_bytes,
                        SSL_SESSION** session) {
  *session = nullptr;
  if (identity_bytes != kIdentity.size() ||
      std::memcmp(identity, kIdentity.data(), identity_bytes) != 0) {
    return 1;  // unknown: without a certificate the handshake fails
  }
  *session = NewPskSession(ssl);
  return *session == nullptr ? 0 : 1;
}

Status TlsContext::Configure(SSL_CTX* ctx) {
  SSL_CTX_set_app_data(ctx, this);
  if (SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(ctx, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256") != 1) {
    return Failed("choosing TLS 1.3 with AES-128-GCM");
  }
  SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
  if (SSL_CTX_set_num_tickets(ctx, 0) != 1) return Failed("switching tickets off");
  SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                            SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_read_ahead(ctx, 1);
  SSL_CTX_set_default_read_buffer_len(ctx, kReadAheadBytes);
  return Status::Ok();
}

Result<std::shared_ptr<TlsContext>> TlsContext::Create(const std::string& job_key) {
  ERR_clear_error();
  const auto psk = KeyedDigest(job_key, kPskLabel, {});
  if (!psk.ok()) return psk.status();
  std::shared_ptr<TlsContext> made(new TlsContext);
  made->psk_ = psk.value();
  made->server_.reset(SSL_CTX_new(TLS_server_method()));
  made->client_.reset(SSL_CTX_new(TLS_client_method()));
  if (!made->server_ || !made->client_) return Failed("creating a context");
  for (SSL_CTX* ctx : {made->server_.get(), made->client_.get()}) {
    if (Status s = made->Configure(ctx); !s.ok()) return s;
  }
  SSL_CTX_set_psk_find_session_callback(made->server_.get(), &FindPsk);
  SSL_CTX_set_psk_use_session_callback(made->client_.get(), &UsePsk);
  // Without a trusted authority any server certificate is rejected: only the key counts.
  SSL_CTX_set_verify(made->client_.get(), SSL_VERIFY_PEER, nullptr);

  made->bio_method_.reset(
      BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "sparsefleet socket"));
  BIO_METHOD* method = made->bio_method_.get();
  if (method == nullptr || BIO_meth_set_read_ex(method, &BioRead) != 1 ||
      BIO_meth_set_write_ex(method, &BioWrite) != 1 ||
      BIO_meth_set_ctrl(method, &BioControl) != 1 || BIO_meth_set_create(method, &BioCreate) != 1) {
    return Failed("creating a BIO method");
  }
  return made;
}

Result<SSL*> TlsContext::NewConnection(Side side, TlsSocket& socket) const {
  ERR_clear_error();
  SSL* ssl = SSL_new(side == Side::kServer ? server_.get() : client_.get());
  BIO* bio = BIO_new(bio_method_.get());
  if (ssl == nullptr || bio == nullptr) {
    SSL_free(ssl);
    BIO_free(bio);
    return Failed("creating a connection");
  }
  BIO_set_data(bio, &socket);
  SSL_set_bio(ssl, bio, bio);  // ssl owns bio from here on
  if (side == Side::kServer) {
    SSL_set_accept_state(ssl);
  } else {
    SSL_set_connect_state(ssl);
  }
  return ssl;
}

}  // namespace sparsefleet
