// sparsefleet._core: the native module. Takes and gives plain buffers; never links torch.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "bind.h"
#include "table/key.h"
#include "table/table_spec.h"
#include "transport/frame.h"

namespace nb = nanobind;

NB_MODULE(_core, m) {
  // A process that ends while a server or store is in use is no defect worth a report.
  nb::set_leak_warnings(false);
  m.doc() = "Native tables, transport, server, client and parsers of sparsefleet.";
  m.attr("PROTOCOL_VERSION") = sparsefleet::kProtocolVersion;
  m.attr("MAX_DIM") = sparsefleet::kMaxDim;
  m.def("mix64", &sparsefleet::Mix64, nb::arg("value"),
        "The 64-bit mixer behind placement and initial values.");
  m.def("owner_of", &sparsefleet::OwnerOf, nb::arg("key"), nb::arg("num_servers"),
        "The server, of `num_servers`, that owns the row of `key`.");
  sparsefleet::python::BindSpecs(m);
  sparsefleet::python::BindCommand(m);
  sparsefleet::python::BindCut(m);
  sparsefleet::python::BindDots(m);
  sparsefleet::python::BindMerge(m);
  sparsefleet::python::BindParse(m);
  sparsefleet::python::BindCsv(m);
  sparsefleet::python::BindRagged(m);
  sparsefleet::python::BindReplica(m);
  sparsefleet::python::BindStore(m);
  sparsefleet::python::BindServer(m);
}
