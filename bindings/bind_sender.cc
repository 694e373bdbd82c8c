// The background sender of gradients. Its calls release the GIL; its thread needs it only for the
// caller's `on_pushed`, if given.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "bind.h"
#include "bind_rounds.h"
#include "owner_process.h"
#include "push_sections.h"
#include "raise.h"
#include "store/gradient_sender.h"
#include "store_call.h"
#include "store_handle.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsefleet::python {
namespace {

// (dense table, the array to fetch its values into)
using TargetTuple = std::tuple<std::string, Array<float>>;

// The arrays of a mini-batch, and the sections that point into them.
struct HeldGradients {
  explicit HeldGradients(std::vector<PushTuple> given)
      : tuples(std::move(given)), made(SectionsOf(tuples)) {}
  const std::vector<PushTuple> tuples;
  const PushSections made;
};

// Calls on_pushed(count); it returns False if it has failed, after reporting why to the sender.
Status CallHook(PyObject* hook, std::size_t count) {
  const Status failed(Code::kInternal, "on_pushed failed");
  if (!nb::is_alive()) return failed;
  nb::gil_scoped_acquire gil;
  try {
    return nb::cast<bool>(nb::borrow<nb::callable>(hook)(count)) ? Status::Ok() : failed;
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("on_pushed of a gradient sender");
  } catch (const std::exception& error) {
    return failed.WithPrefix(std::string(error.what()) + ": ");
  }
  return failed;
}

class SenderHandle {
 public:
  SenderHandle(const StoreHandle& store, SenderOptions options, std::vector<TargetTuple> targets,
               nb::object on_pushed)
      : targets_(std::move(targets)), on_pushed_(std::move(on_pushed)) {
    for (const auto& [table, values] : targets_) options.dense.push_back({table, SpanOf(values)});
    if (!on_pushed_.is_none()) {
      options.on_pushed = [hook = on_pushed_.ptr()](std::size_t count) {
        return CallHook(hook, count);
      };
    }
    sender_ = std::make_unique<GradientSender>(store.Get(), store.step(), std::move(options));
  }
  SenderHandle(const SenderHandle&) = delete;
  SenderHandle& operator=(const SenderHandle&) = delete;
  ~SenderHandle() {
    // The garbage collector may run in on_pushed: then the thread cannot wait for itself.
    const bool is_own_thread = !owner_.IsForked() && sender_->IsOwnThread();
    if (is_own_thread) sender_->Fail(Status(Code::kShuttingDown, "the sender was dropped"));
    if (owner_.IsForked() || is_own_thread) {
      Leak(std::move(sender_));
      Leak(std::move(targets_));
      Leak(std::move(on_pushed_));
      return;
    }
    nb::gil_scoped_release release;
    sender_->Stop();
  }

  std::tuple<double, std::size_t> Put(std::vector<PushTuple> tuples,
                                      const std::vector<DataTuple>& data, bool alone) {
    const auto held = std::make_shared<const HeldGradients>(std::move(tuples));
    const auto result = Wait([&](GradientSender& sender) {
      return sender.Put({.sections = held->made.sections,
                         .refusal = {},
                         .memory = held,
                         .marks = MarksOf(data),
                         .alone = alone});
    });
    CheckCall(result.status());
    return {result.value().waited_s, result.value().staleness};
  }

  void WaitEmpty() {
    CheckCall(Wait([](GradientSender& sender) { return sender.WaitEmpty(); }));
  }
  void Flush() {
    CheckCall(Wait([](GradientSender& sender) { return sender.Flush(); }));
  }
  void End() {
    CheckCall(Wait([](GradientSender& sender) {
      sender.End();
      return Status::Ok();
    }));
  }

  void Fail(nb::object error) {
    owner_.Check("gradient sender");
    const auto cause = std::make_shared<const nb::object>(std::move(error));
    nb::gil_scoped_release release;
    sender_->Fail(Status(Code::kInternal, "training failed"), cause);
  }

  void BoundStaleness(const MemberOf& member, std::uint64_t ahead, std::uint64_t applied) {
    owner_.Check("gradient sender");
    sender_->BoundStaleness(member.view(), ahead, applied);
  }
  // The exception passed to Fail(), if it is the one that calls raise. Its traceback may refer back
  // to the owner of this sender, so the garbage collector must know about it.
  std::shared_ptr<const nb::object> cause() const {
    if (owner_.IsForked()) return nullptr;  // a lock may be held forever there
    return std::static_pointer_cast<const nb::object>(sender_->failure_cause());
  }
  void DropCause() {
    if (!owner_.IsForked()) sender_->DropFailureCause();
  }

  SenderStats Stats() const {
    owner_.Check("gradient sender");
    return sender_->stats();
  }
  std::map<std::string, std::uint64_t> TakeRejected() {
    owner_.Check("gradient sender");
    return sender_->TakeRejected();
  }

 private:
  // Calls `f(sender)` without the GIL; a signal handler that raises ends it.
  template <typename F>
  std::invoke_result_t<F, GradientSender&> Wait(F f) {
    owner_.Check("gradient sender");
    std::optional<nb::python_error> raised;
    auto result = [&] {
      nb::gil_scoped_release release;
      return CheckSignalsDuring(raised, [&] { return f(*sender_); });
    }();
    sender_->TakeSpent();  // frees arrays, with the GIL
    if (raised) throw nb::python_error(std::move(*raised));
    return result;
  }

  // Raises the exception passed to Fail(), or that of the status.
  void CheckCall(const Status& status) const {
    if (status.ok()) return;
    const auto raised = cause();
    if (raised == nullptr) Raise(status);
    PyErr_SetObject(raised->type().ptr(), raised->ptr());
    throw nb::python_error();
  }

  OwnerProcess owner_;
  // The sender's thread reads these, so they outlive it.
  std::vector<TargetTuple> targets_;
  nb::object on_pushed_;
  std::unique_ptr<GradientSender> sender_;
};

int Traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const auto cause = nb::inst_ptr<SenderHandle>(self)->cause();
  if (cause != nullptr) Py_VISIT(cause->ptr());
  return 0;
}

int Clear(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<SenderHandle>(self)->DropCause();
  return 0;
}

PyType_Slot kSlots[] = {{Py_tp_traverse, reinterpret_cast<void*>(Traverse)},
                        {Py_tp_clear, reinterpret_cast<void*>(Clear)},
                        {0, nullptr}};

void Init(SenderHandle* self, const StoreHandle& store, std::size_t max_merge,
          std::size_t queue_size, double linger_s, std::optional<std::size_t> max_open,
          const std::vector<std::string>& summed, std::vector<TargetTuple> dense,
          std::size_t refresh_after, nb::object on_pushed, double wait_s, double timeout_s) {
  if (max_merge == 0 || queue_size == 0) {
    Raise({Code::kInvalidArgument, "max_merge and queue_size must be >= 1, got " +
                                       std::to_string(max_merge) + " and " +
                                       std::to_string(queue_size)});
  }
  SenderOptions options;
  options.max_merge = max_merge;
  options.queue_size = queue_size;
  options.linger_s = linger_s;
  options.max_open = max_open;
  options.summed = {summed.begin(), summed.end()};
  options.refresh_after = refresh_after;
  options.wait_s = wait_s;
  options.timeout_s = timeout_s;
  new (self) SenderHandle(store, std::move(options), std::move(dense), std::move(on_pushed));
}

}  // namespace

void BindSender(nb::module_& m) {
  nb::class_<SenderStats>(m, "SenderStats")
      .def_ro("pushes", &SenderStats::pushes)
      .def_ro("merged", &SenderStats::merged, "Mini-batches in those pushes.")
      .def_ro("push_s", &SenderStats::push_s)
      .def_ro("pull_s", &SenderStats::pull_s)
      .def_ro("open", &SenderStats::open, "Mini-batches queued and not yet applied.");
  nb::class_<SenderHandle>(m, "GradientSender", nb::type_slots(kSlots),
                           "Merges and pushes gradients in the background; see "
                           "sparsefleet.store.GradientSender for the public API.")
      .def("__init__", &Init, "store"_a, nb::kw_only(), "max_merge"_a, "queue_size"_a, "linger_s"_a,
           "max_open"_a.none(), "summed"_a, "dense"_a, "refresh_after"_a, "on_pushed"_a.none(),
           "wait_s"_a, "timeout_s"_a)
      .def("put", &SenderHandle::Put, "sections"_a, "data"_a = std::vector<DataTuple>{},
           "alone"_a = false,
           "Queues a mini-batch; returns the seconds waited and the staleness before it.")
      .def("wait_empty", &SenderHandle::WaitEmpty)
      .def("flush", &SenderHandle::Flush)
      .def("bound_staleness", &SenderHandle::BoundStaleness, "member"_a, "ahead"_a, "applied"_a = 0)
      .def("fail", &SenderHandle::Fail, "error"_a,
           "Makes all calls raise `error`, unless something failed earlier.")
      .def("end", &SenderHandle::End)
      .def("take_rejected", &SenderHandle::TakeRejected,
           "Rows skipped as non-finite since the last call, by the tables of the push.")
      .def_prop_ro("stats", &SenderHandle::Stats);
}

}  // namespace sparsefleet::python
