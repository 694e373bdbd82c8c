// Parses the names of transports and of number formats on the wire.
#pragma once

#include <string>

#include "client/client.h"
#include "raise.h"
#include "transport/security.h"

namespace sparsefleet::python {

inline TransportKind TransportOf(const std::string& name) {
  if (name == "auto") return TransportKind::kAuto;
  if (name == "tls") return TransportKind::kTls;
  if (name == "plain") return TransportKind::kPlain;
  Raise(Status(Code::kInvalidArgument,
               "transport must be 'auto', 'tls' or 'plain', got '" + name + "'"));
}

inline WireDtype WireDtypeOf(const std::string& name) {
  if (name == "float32") return WireDtype::kFloat32;
  if (name == "bf16") return WireDtype::kBf16;
  Raise(
      Status(Code::kInvalidArgument, "wire_dtype must be 'float32' or 'bf16', got '" + name + "'"));
}

}  // namespace sparsefleet::python
