#include "transport/key_proof.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <vector>

namespace sparsefleet {

Result<Digest> KeyedDigest(std::string_view key, std::string_view label,
                           std::initializer_list<std::span<const std::byte>> parts) {
  const auto label_bytes = std::as_bytes(std::span(label));
  std::vector<std::byte> text(label_bytes.begin(), label_bytes.end());
  for (const auto part : parts) text.insert(text.end(), part.begin(), part.end());
  Digest digest;
  unsigned int size = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(),
           reinterpret_cast<unsigned char*>(digest.data()), &size) == nullptr ||
      size != digest.size()) {
    ERR_clear_error();
    return Status(Code::kInternal, "OpenSSL cannot compute HMAC-SHA256");
  }
  return digest;
}

bool SameDigest(std::span<const std::byte> a, std::span<const std::byte> b) {
  return CRYPTO_memcmp(a.data(), b.data(), kDigestBytes) == 0;
}

Status FillRandom(std::span<std::byte> out) {
  if (RAND_bytes(reinterpret_cast<unsigned char*>(out.data()), static_cast<int>(out.size())) != 1) {
    ERR_clear_error();
    return {Code::kInternal, "OpenSSL has no random bytes"};
  }
  return Status::Ok();
}

Result<std::uint64_t> RandomNumber() {
  std::uint64_t number = 0;
  while (number == 0) {
    if (Status s = FillRandom(std::as_writable_bytes(std::span(&number, 1))); !s.ok()) return s;
  }
  return number;
}

}  // namespace sparsefleet
