// SPDX-License-Identifier: Apache-2.0
#include "lockstep/watch/flight_memory.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <ctime>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/system_error.h"

namespace lockstep::watch {
namespace {

// Incremented when the layout changes, since a rank and its launcher may have different builds.
constexpr uint64_t kMagic = 0x6c6b2d666c743033;  // "lk-flt03"
constexpr size_t kWords = sizeof(Operation) / sizeof(uint64_t);
using Words = std::array<uint64_t, kWords>;
constexpr int kTries = 100;  // Reads of an entry that is being written, which takes nanoseconds.

struct Entry {
  std::atomic<uint64_t> version{0};
  std::array<std::atomic<uint64_t>, kWords> words{};

  void write(const Operation& operation) {
    const auto plain = std::bit_cast<Words>(operation);
    const uint64_t before = version.load(std::memory_order_relaxed);
    version.store(before + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    for (size_t i = 0; i < kWords; ++i) {
      words[i].store(plain[i], std::memory_order_relaxed);
    }
    version.store(before + 2, std::memory_order_release);
  }

  /// Returns nothing if the entry was never written, or if the writer was stopped or killed during
  /// a write.
  std::optional<Operation> read() const {
    for (int i = 0; i < kTries; ++i) {
      const uint64_t before = version.load(std::memory_order_acquire);
      if (before == 0) {
        return std::nullopt;
      }
      Words plain;
      for (size_t word = 0; word < kWords; ++word) {
        plain[word] = words[word].load(std::memory_order_relaxed);
      }
      std::atomic_thread_fence(std::memory_order_acquire);
      if (before % 2 == 0 && version.load(std::memory_order_relaxed) == before) {
        return std::bit_cast<Operation>(plain);
      }
    }
    return std::nullopt;
  }
};

}  // namespace

struct FlightMemory::Layout {
  std::atomic<uint64_t> magic{kMagic};
  std::atomic<int64_t> pid{0};
  std::atomic<int64_t> rank{0};
  std::atomic<int64_t> world{1};
  std::atomic<int64_t> left{0};
  std::atomic<int64_t> saving{0};
  std::atomic<int64_t> step{0};
  std::atomic<uint64_t> issued{0};
  std::atomic<uint64_t> ended{0};
  std::atomic<int64_t> progress_ns{0};
  std::array<Entry, kOperations> entries;

  static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared between processes");
};

FlightMemory::FlightMemory(FileMap map, Layout* layout, UniqueFd fd, std::string path)
    : map_(std::move(map)), layout_(layout), fd_(std::move(fd)), path_(std::move(path)) {}

FlightMemory FlightMemory::create() {
  UniqueFd fd(::memfd_create("lockstep-flight", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  FileMap map;
  if (fd.is_open() && ::ftruncate(fd.get(), sizeof(Layout)) == 0 &&
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
    map = FileMap(fd.get(), sizeof(Layout), PROT_READ | PROT_WRITE, MAP_SHARED);
  }
  if (map.data() == nullptr) {
    throw Error(
        "watch",
        fmt::format(
            "the shared memory for a rank's flight record cannot be created: {}",
            system_error_text(errno)));
  }
  std::string path = fmt::format("/proc/{}/fd/{}", ::getpid(), fd.get());
  auto* const layout = new (map.data()) Layout;
  return {std::move(map), layout, std::move(fd), std::move(path)};
}

std::optional<FlightMemory> FlightMemory::open(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat status {};
  if (!fd.is_open() || ::fstat(fd.get(), &status) != 0 || status.st_size != sizeof(Layout) ||
      (::fcntl(fd.get(), F_GET_SEALS) & F_SEAL_SHRINK) == 0) {
    return std::nullopt;
  }
  FileMap map(fd.get(), sizeof(Layout), PROT_READ | PROT_WRITE, MAP_SHARED);
  if (!map.is_mapped()) {
    return std::nullopt;
  }
  auto* const layout = reinterpret_cast<Layout*>(map.data());
  FlightMemory opened(std::move(map), layout, UniqueFd(), "");
  if (opened.layout_->magic.load() != kMagic) {
    return std::nullopt;
  }
  return opened;
}

bool FlightMemory::claim(int64_t pid, int64_t rank, int64_t world) {
  int64_t writer = 0;
  if (!layout_->pid.compare_exchange_strong(writer, pid) && writer != pid) {
    return false;
  }
  layout_->left.store(0);
  layout_->saving.store(0);
  layout_->rank.store(rank);
  layout_->world.store(world);
  record_progress();
  return true;
}

void FlightMemory::record_progress() {
  layout_->progress_ns.store(now_ns(), std::memory_order_relaxed);
}

void FlightMemory::write(const Operation& operation) {
  layout_->entries[operation.number % kOperations].write(operation);
  if (operation.number > layout_->issued.load(std::memory_order_relaxed)) {
    layout_->issued.store(operation.number, std::memory_order_relaxed);
  }
  if (operation.is_over()) {
    layout_->ended.fetch_add(1, std::memory_order_relaxed);
  }
  // The operation's last time is the current time, so the clock is not read again.
  layout_->progress_ns.store(
      std::max({operation.issued_ns, operation.started_ns, operation.ended_ns}),
      std::memory_order_relaxed);
}

void FlightMemory::count_end() {
  layout_->ended.fetch_add(1, std::memory_order_relaxed);
  record_progress();
}

std::optional<Operation> FlightMemory::find(uint64_t number) const {
  std::optional<Operation> found = layout_->entries[number % kOperations].read();
  if (found && found->number != number) {
    found.reset();
  }
  return found;
}

void FlightMemory::set_step(int64_t step) {
  layout_->step.store(step, std::memory_order_relaxed);
  record_progress();
}

void FlightMemory::set_left() {
  layout_->left.store(1, std::memory_order_relaxed);
  record_progress();
}

void FlightMemory::set_saving(bool saving) {
  layout_->saving.store(saving ? 1 : 0, std::memory_order_relaxed);
  record_progress();
}

FlightRecord FlightMemory::read() const {
  FlightRecord record{
      .pid = layout_->pid.load(),
      .rank = layout_->rank.load(),
      .world = layout_->world.load(),
      .left = layout_->left.load() != 0,
      .saving = layout_->saving.load() != 0,
      .step = layout_->step.load(),
      .issued = layout_->issued.load(),
      .ended = layout_->ended.load(),
      .progress_ns = layout_->progress_ns.load(),
      .operations = {}};
  for (const Entry& entry : layout_->entries) {
    if (const auto operation = entry.read()) {
      record.operations.push_back(*operation);
    }
  }
  std::sort(record.operations.begin(), record.operations.end(), [](const auto& a, const auto& b) {
    return a.number < b.number;
  });
  return record;
}

int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace lockstep::watch
