// Parses "auto", "tls" and "plain".
#pragma once

#include <string>

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

}  // namespace sparsefleet::python
