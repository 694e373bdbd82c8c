// Locks that clang can check: the standard ones with thread annotations. Header only.
//
// A member that a mutex guards is declared `T member_ GUARDED_BY(mutex_)`, a function that needs
// the mutex held `REQUIRES(mutex_)`. `make lint` then proves that no access is without its lock.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>

#include "sync/thread_annotations.h"

namespace sparsefleet {

class CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() ACQUIRE() { mutex_.lock(); }
  void unlock() RELEASE() { mutex_.unlock(); }
  // Tells clang that the mutex is held, where it cannot see it: in a callback. Checks nothing.
  void AssertHeld() const ASSERT_CAPABILITY(this) {}

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a Mutex until the end of its scope, or until unlock().
class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() RELEASE() {
    if (is_held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void unlock() RELEASE() {
    is_held_ = false;
    mutex_.unlock();
  }
  void lock() ACQUIRE() {
    mutex_.lock();
    is_held_ = true;
  }

 private:
  Mutex& mutex_;
  bool is_held_ = true;
};

// Many readers or one writer.
class CAPABILITY("mutex") SharedMutex {
 public:
  SharedMutex() = default;
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;

  void lock() ACQUIRE() { mutex_.lock(); }
  void unlock() RELEASE() { mutex_.unlock(); }
  void lock_shared() ACQUIRE_SHARED() { mutex_.lock_shared(); }
  void unlock_shared() RELEASE_SHARED() { mutex_.unlock_shared(); }
  // As Mutex::AssertHeld().
  void AssertHeld() const ASSERT_CAPABILITY(this) {}
  void AssertReaderHeld() const ASSERT_SHARED_CAPABILITY(this) {}

 private:
  std::shared_mutex mutex_;
};

class SCOPED_CAPABILITY ReaderLock {
 public:
  explicit ReaderLock(SharedMutex& mutex) ACQUIRE_SHARED(mutex) : mutex_(mutex) {
    mutex_.lock_shared();
  }
  ~ReaderLock() RELEASE_GENERIC() { mutex_.unlock_shared(); }
  ReaderLock(const ReaderLock&) = delete;
  ReaderLock& operator=(const ReaderLock&) = delete;

 private:
  SharedMutex& mutex_;
};

class SCOPED_CAPABILITY WriterLock {
 public:
  explicit WriterLock(SharedMutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~WriterLock() RELEASE() { mutex_.unlock(); }
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  SharedMutex& mutex_;
};

// A condition variable for Mutex. Predicates run with the mutex held; write them as
// `[&]() REQUIRES(mutex_) { ... }`.
class CondVar {
 public:
  void notify_one() { changed_.notify_one(); }
  void notify_all() { changed_.notify_all(); }

  template <typename Ready>
  void Wait(Mutex& mutex, Ready ready) REQUIRES(mutex) NO_THREAD_SAFETY_ANALYSIS {
    const Adopted lock(mutex.mutex_);
    changed_.wait(lock.native, ready);
  }
  template <typename Clock, typename Duration>
  void WaitUntil(Mutex& mutex, std::chrono::time_point<Clock, Duration> deadline) REQUIRES(mutex) {
    const Adopted lock(mutex.mutex_);
    changed_.wait_until(lock.native, deadline);
  }
  // Returns ready() when it is true, or at the deadline.
  template <typename Clock, typename Duration, typename Ready>
  bool WaitUntil(Mutex& mutex, std::chrono::time_point<Clock, Duration> deadline, Ready ready)
      REQUIRES(mutex) NO_THREAD_SAFETY_ANALYSIS {
    const Adopted lock(mutex.mutex_);
    return changed_.wait_until(lock.native, deadline, ready);
  }
  template <typename Rep, typename Period, typename Ready>
  bool WaitFor(Mutex& mutex, std::chrono::duration<Rep, Period> time, Ready ready)
      REQUIRES(mutex) NO_THREAD_SAFETY_ANALYSIS {
    const Adopted lock(mutex.mutex_);
    return changed_.wait_for(lock.native, time, ready);
  }

 private:
  // The caller's lock in the form the standard library needs; still held afterwards.
  struct Adopted {
    explicit Adopted(std::mutex& mutex) : native(mutex, std::adopt_lock) {}
    ~Adopted() { native.release(); }
    mutable std::unique_lock<std::mutex> native;
  };
  std::condition_variable changed_;
};

}  // namespace sparsefleet
