// Puts the rows of a snapshot into tables, on several threads.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "status/status.h"
#include "sync/mutex.h"
#include "table/sparse_table.h"

namespace sparsefleet {

// Add() and Drain() are for one thread.
class RowLoader {
 public:
  RowLoader();
  ~RowLoader();

  // Rows as TableCut::NextRecords() gives them, which must stay where they are until Drain().
  void Add(std::shared_ptr<SparseTable> table, std::span<const std::byte> rows);
  // Returns when all rows are there; the first error since the last call.
  Status Drain();

 private:
  struct Part {
    std::shared_ptr<SparseTable> table;
    std::span<const std::byte> rows;
  };
  void Work();

  Mutex mutex_;
  CondVar changed_;
  std::deque<Part> parts_ GUARDED_BY(mutex_);
  std::size_t num_running_ GUARDED_BY(mutex_) = 0;
  bool is_over_ GUARDED_BY(mutex_) = false;
  Status failure_ GUARDED_BY(mutex_);
  std::vector<std::jthread> threads_;  // last: they use the others
};

}  // namespace sparsefleet
