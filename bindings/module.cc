// sparsefleet._core: the native module. Exchanges plain buffers; never links torch.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "bind.h"
#include "key/key.h"
#include "store/round_member.h"
#include "table/table_spec.h"
#include "transport/frame.h"
#include "transport/security.h"

namespace nb = nanobind;

NB_MODULE(_core, m) {
  // A process that exits while a server or store is in use does not merit a leak report.
  nb::set_leak_warnings(false);
  m.doc() = "Native tables, transport, server, client and parsers of sparsefleet.";
  m.attr("PROTOCOL_VERSION") = sparsefleet::kProtocolVersion;
  m.attr("MAX_DIM") = sparsefleet::kMaxDim;
  m.attr("MAX_TABLE_NAME_BYTES") = sparsefleet::kMaxTableNameBytes;
  m.attr("MAX_DENSE_SIZE") = sparsefleet::kMaxDenseSize;
  m.attr("MAX_COUNT") = sparsefleet::kMaxCount;
  m.attr("MAX_GROUP_SIZE") = sparsefleet::kMaxGroupSize;
  m.attr("MAX_GROUP_NAME_BYTES") = sparsefleet::kMaxGroupNameBytes;
  m.attr("MAX_BODY_BYTES") = sparsefleet::kMaxBodyBytes;
  m.attr("MIN_JOB_KEY_BYTES") = sparsefleet::kMinJobKeyBytes;
  m.def("mix64", &sparsefleet::Mix64, nb::arg("value"),
        "The 64-bit mixer behind placement and initial values.");
  m.def("owner_of", &sparsefleet::OwnerOf, nb::arg("key"), nb::arg("num_servers"),
        "The server, of `num_servers`, that owns the row of `key`.");
  sparsefleet::python::BindSpecs(m);
  sparsefleet::python::BindCommand(m);
  sparsefleet::python::BindConversions(m);
  sparsefleet::python::BindCut(m);
  sparsefleet::python::BindDots(m);
  sparsefleet::python::BindMerge(m);
  sparsefleet::python::BindPairs(m);
  sparsefleet::python::BindParse(m);
  sparsefleet::python::BindCsv(m);
  sparsefleet::python::BindRagged(m);
  sparsefleet::python::BindReplica(m);
  sparsefleet::python::BindStore(m);
  sparsefleet::python::BindSender(m);
  sparsefleet::python::BindServer(m);
}
