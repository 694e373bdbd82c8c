// Macros that let clang check lock rules at compile time (-Wthread-safety); other compilers ignore
// them. See https://clang.llvm.org/docs/ThreadSafetyAnalysis.html. Header only.
#pragma once

#ifdef __clang__
#define SPARSEFLEET_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define SPARSEFLEET_THREAD_ATTRIBUTE(x)
#endif

// On types.
#define CAPABILITY(name) SPARSEFLEET_THREAD_ATTRIBUTE(capability(name))
#define SCOPED_CAPABILITY SPARSEFLEET_THREAD_ATTRIBUTE(scoped_lockable)

// On members.
#define GUARDED_BY(mutex) SPARSEFLEET_THREAD_ATTRIBUTE(guarded_by(mutex))
#define PT_GUARDED_BY(mutex) SPARSEFLEET_THREAD_ATTRIBUTE(pt_guarded_by(mutex))
#define ACQUIRED_BEFORE(...) SPARSEFLEET_THREAD_ATTRIBUTE(acquired_before(__VA_ARGS__))

// On functions and lambdas.
#define REQUIRES(...) SPARSEFLEET_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define REQUIRES_SHARED(...) SPARSEFLEET_THREAD_ATTRIBUTE(requires_shared_capability(__VA_ARGS__))
#define EXCLUDES(...) SPARSEFLEET_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) SPARSEFLEET_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define ACQUIRE_SHARED(...) SPARSEFLEET_THREAD_ATTRIBUTE(acquire_shared_capability(__VA_ARGS__))
#define RELEASE(...) SPARSEFLEET_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define RELEASE_SHARED(...) SPARSEFLEET_THREAD_ATTRIBUTE(release_shared_capability(__VA_ARGS__))
#define RELEASE_GENERIC(...) SPARSEFLEET_THREAD_ATTRIBUTE(release_generic_capability(__VA_ARGS__))
#define ASSERT_CAPABILITY(x) SPARSEFLEET_THREAD_ATTRIBUTE(assert_capability(x))
#define ASSERT_SHARED_CAPABILITY(x) SPARSEFLEET_THREAD_ATTRIBUTE(assert_shared_capability(x))
#define NO_THREAD_SAFETY_ANALYSIS SPARSEFLEET_THREAD_ATTRIBUTE(no_thread_safety_analysis)
