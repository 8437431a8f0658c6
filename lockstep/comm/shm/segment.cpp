// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/segment.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/host/machine.h"
#include "lockstep/base/system_error.h"

namespace lockstep::comm::shm {
namespace {

constexpr size_t kPage = 4096;
constexpr uint64_t kSegmentMagic =
    0x31306d68732d6b6cU;  // "lk-shm01"; another layout gets another number.

struct Head {
  uint64_t magic;
  SegmentSizes sizes;
};
static_assert(sizeof(Head) <= kPage);

std::string errno_text() {
  return system_error_text(errno);
}

size_t channel_bytes(const SegmentSizes& sizes) {
  return round_up_to_pages(sizeof(Channel)) + 2 * sizes.chunk_bytes;
}

SegmentSizes filled_in(SegmentSizes sizes) {
  const auto ranks = static_cast<size_t>(sizes.ranks);
  if (sizes.slot_bytes == 0) {
    // 1 MiB was the best of ten choices on two cores.
    sizes.slot_bytes =
        std::clamp((size_t{128} << 20U) / (2 * ranks), size_t{64} << 10U, size_t{1} << 20U);
  }
  if (sizes.chunk_bytes == 0) {
    sizes.chunk_bytes =
        std::clamp((size_t{64} << 20U) / (2 * ranks * ranks), kPage, size_t{128} << 10U);
  }
  if (sizes.arena_bytes == 0) {
    sizes.arena_bytes = static_cast<size_t>(::sysconf(_SC_PHYS_PAGES)) * kPage;
  }
  sizes.slot_bytes = round_up_to_pages(sizes.slot_bytes);
  sizes.chunk_bytes = round_up_to_pages(sizes.chunk_bytes);
  sizes.arena_bytes = round_up_to_pages(sizes.arena_bytes);
  return sizes;
}

}  // namespace

size_t round_up_to_pages(size_t bytes) {
  return (std::max<size_t>(bytes, 1) + kPage - 1) / kPage * kPage;
}

Segment::Offsets::Offsets(const SegmentSizes& sizes)
    : controls(kPage),
      slots(controls + round_up_to_pages(sizeof(Control) * static_cast<size_t>(sizes.ranks))),
      channels(slots + sizes.slot_bytes * static_cast<size_t>(sizes.slots * sizes.ranks)),
      arenas(channels + channel_bytes(sizes) * static_cast<size_t>(sizes.ranks * sizes.ranks)),
      end(arenas + sizes.arena_bytes * static_cast<size_t>(sizes.ranks)) {}

Segment::Segment(UniqueFd fd, SegmentSizes sizes)
    : fd_(std::move(fd)),
      sizes_(sizes),
      offsets_(sizes),
      map_(fd_.get(), offsets_.end, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE) {
  if (!map_.is_mapped()) {
    throw Error(
        "shared memory",
        fmt::format("cannot map {} bytes of address space: {}", offsets_.end, errno_text()));
  }
  // A core dump needs the rank's own tensors, not the messages between ranks.
  ::madvise(map_.data(), offsets_.end, MADV_DONTDUMP);
}

std::shared_ptr<Segment> Segment::create(SegmentSizes sizes) {
  sizes = filled_in(sizes);
  UniqueFd fd(::memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.is_open()) {
    throw Error("shared memory", "cannot create an anonymous file: " + errno_text());
  }
  const size_t end = Offsets(sizes).end;
  // Beyond the limit the kernel would end this process with SIGXFSZ.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < end) {
    throw Error(
        "shared memory",
        fmt::format(
            "the file size limit is too low; got {} bytes, expected {} (address space, little of "
            "which is used); try `ulimit -f unlimited`",
            limit.rlim_cur,
            end));
  }
  if (::ftruncate(fd.get(), static_cast<off_t>(end)) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw Error(
        "shared memory", fmt::format("cannot set the size to {} bytes: {}", end, errno_text()));
  }
  std::shared_ptr<Segment> segment(new Segment(std::move(fd), sizes));
  segment->reserve(segment->map_.data(), segment->offsets_.channels, "the slots of all ranks");
  new (segment->map_.data()) Head{.magic = kSegmentMagic, .sizes = sizes};
  return segment;
}

std::shared_ptr<Segment> Segment::attach(UniqueFd fd) {
  Head head{};
  struct stat info {};
  const bool valid = ::fstat(fd.get(), &info) == 0 &&
                     ::pread(fd.get(), &head, sizeof(head), 0) == ssize_t{sizeof(head)} &&
                     head.magic == kSegmentMagic &&
                     static_cast<size_t>(info.st_size) == Offsets(head.sizes).end;
  if (!valid) {
    throw CommError(
        "join",
        "the shared memory of rank 0 has another format; run the same version of Lockstep on all "
        "ranks");
  }
  return std::shared_ptr<Segment>(new Segment(std::move(fd), head.sizes));
}

Control& Segment::control(int rank) const {
  // The kernel's zeros are valid values of all its members.
  return *(std::launder(reinterpret_cast<Control*>(map_.data() + offsets_.controls)) + rank);
}

std::byte* Segment::slot(int rank, uint64_t phase) const {
  const auto index = static_cast<size_t>(rank * sizes_.slots) +
                     static_cast<size_t>(phase % static_cast<uint64_t>(sizes_.slots));
  return map_.data() + offsets_.slots + index * sizes_.slot_bytes;
}

size_t Segment::channel_offset(int from, int to) const {
  return offsets_.channels + channel_bytes(sizes_) * static_cast<size_t>(from * sizes_.ranks + to);
}

Channel& Segment::channel(int from, int to) const {
  return *std::launder(reinterpret_cast<Channel*>(map_.data() + channel_offset(from, to)));
}

std::byte* Segment::chunk(int from, int to, uint32_t number) const {
  return map_.data() + channel_offset(from, to) + round_up_to_pages(sizeof(Channel)) +
         (number % 2) * sizes_.chunk_bytes;
}

std::byte* Segment::arena(int rank) const {
  return map_.data() + offsets_.arenas + sizes_.arena_bytes * static_cast<size_t>(rank);
}

void Segment::reserve(const std::byte* begin, size_t bytes, const char* what) const {
  // Without this check the kernel would kill other processes before it refuses the allocation.
  const Machine::Memory memory = describe_memory();
  const uint64_t free =
      std::min(memory.available_bytes, memory.cgroup_bytes.value_or(memory.available_bytes));
  if (memory.bytes > 0 && bytes > free) {
    throw Error(
        "shared memory",
        fmt::format(
            "cannot allocate {} bytes for {}: this host has {} free; free memory, or set "
            "LOCKSTEP_COMM=gloo",
            bytes,
            what,
            free));
  }
  const auto offset = static_cast<size_t>(begin - map_.data());
  const size_t first = offset / kPage * kPage;
  int error = 0;
  do {
    error = ::fallocate(
                fd_.get(),
                0,
                static_cast<off_t>(first),
                static_cast<off_t>(round_up_to_pages(offset + bytes) - first)) == 0
                ? 0
                : errno;
  } while (error == EINTR);
  if (error != 0) {
    throw Error(
        "shared memory",
        fmt::format(
            "cannot allocate {} bytes for {}: {}; free memory on this host, or set "
            "LOCKSTEP_COMM=gloo",
            bytes,
            what,
            std::strerror(error)));
  }
}

void Segment::reserve_channel(int from, int to) const {
  reserve(
      map_.data() + channel_offset(from, to), channel_bytes(sizes_), "a channel between two ranks");
}

void Segment::release(const std::byte* begin, size_t bytes) const noexcept {
  ::fallocate(
      fd_.get(),
      FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
      static_cast<off_t>(begin - map_.data()),
      static_cast<off_t>(bytes));
}

}  // namespace lockstep::comm::shm
