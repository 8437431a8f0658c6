// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/memory/keep_memory.h"

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

// A sanitizer's malloc has no such settings.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

constexpr size_t kBytes = size_t{16} << 20;

/// Counts the page faults of writing to newly allocated memory of `kBytes`.
long faults_of_one_use() {
  rusage before{};
  ::getrusage(RUSAGE_SELF, &before);
  void* memory = std::malloc(kBytes);
  std::memset(memory, 1, kBytes);
  asm volatile("" : : "r"(memory) : "memory");  // Keeps the write.
  std::free(memory);
  rusage after{};
  ::getrusage(RUSAGE_SELF, &after);
  return after.ru_minflt - before.ru_minflt;
}

/// Runs in a separate process, since malloc's settings belong to the process.
int in_a_child(int (*body)()) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(KeepFreedMemory, TheSecondUseOfASizeCostsNoPages) {
  EXPECT_EQ(
      in_a_child([] {
        keep_freed_memory();
        faults_of_one_use();
        return faults_of_one_use() < 16 ? 0 : 1;
      }),
      0);
}

TEST(KeepFreedMemory, IsReturnedOnRequest) {
  EXPECT_EQ(
      in_a_child([] {
        keep_freed_memory();
        faults_of_one_use();
        release_freed_memory();
        return faults_of_one_use() < 16 ? 1 : 0;
      }),
      0);
}

TEST(KeepFreedMemory, KeepsTheUsersSetting) {
  EXPECT_EQ(
      in_a_child([] {
        ::setenv("MALLOC_TRIM_THRESHOLD_", "131072", 1);
        keep_freed_memory();
        faults_of_one_use();
        return faults_of_one_use() < 16 ? 1 : 0;
      }),
      0);
}

#endif

}  // namespace
}  // namespace lockstep
