// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/file/output_file.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/memory/crc32c.h"
#include "lockstep/storage/file/crc_combine.h"

namespace lockstep::storage {
namespace {

// Small enough to stay in the cache between the checksum and the kernel's copy.
constexpr size_t kChunkBytes = size_t{256} << 10;

// Flushed in steps of this size, so that the disk works while the rest is written, and finish waits
// only for the last step.
constexpr uint64_t kDiskBytes = uint64_t{32} << 20;

/// Makes a write beyond the file size limit (ulimit -f) fail, which by default ends the process. A
/// handler is used since child programs would inherit SIG_IGN.
void survive_size_limit() {
  struct sigaction present {};
  if (sigaction(SIGXFSZ, nullptr, &present) == 0 && (present.sa_flags & SA_SIGINFO) == 0 &&
      present.sa_handler == SIG_DFL) {
    struct sigaction nothing {};
    nothing.sa_handler = [](int) {};
    nothing.sa_flags = SA_RESTART;
    sigaction(SIGXFSZ, &nothing, nullptr);
  }
}

}  // namespace

OutputFile::OutputFile(const std::filesystem::path& path)
    : path_(path),
      file_(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666)) {
  if (!file_.is_open()) {
    throw_errno(path_, "cannot be created");
  }
  survive_size_limit();
  buffer_.reserve(kChunkBytes);
}

OutputFile::~OutputFile() {
  if (file_.is_open()) {
    unlink(path_.c_str());
  }
}

uint32_t OutputFile::append(const void* data, size_t size) {
  const auto* at = static_cast<const std::byte*>(data);
  uint32_t own = 0;
  for (size_t rest = size; rest > 0;) {
    const size_t chunk = std::min(rest, kChunkBytes);
    own = lockstep::crc32c(own, at, chunk);
    put(at, chunk);
    at += chunk;
    rest -= chunk;
  }
  crc32c_ = crc32c_combine(crc32c_, own, size);
  bytes_ += size;
  return own;
}

void OutputFile::put(const std::byte* data, size_t size) {
  if (buffer_.size() + size > kChunkBytes) {
    flush();
  }
  if (size >= kChunkBytes) {
    write_out(data, size);
  } else {
    buffer_.insert(buffer_.end(), data, data + size);
  }
}

void OutputFile::flush() {
  write_out(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void OutputFile::write_out(const std::byte* data, size_t size) {
  while (size > 0) {
    const ssize_t done = write(file_.get(), data, size);
    if (done < 0 && errno == EINTR) {
      continue;
    }
    if (done < 0) {
      throw_errno(path_, "cannot be written");
    }
    data += done;
    size -= static_cast<size_t>(done);
    written_ += static_cast<uint64_t>(done);
  }
  if (written_ - begun_ >= kDiskBytes) {
    // The previous step must be on disk before the next one starts. So the written bytes follow the
    // disk, and a launcher sees the progress of a slow save; else it would be silent in fsync.
    sync(waited_, begun_, SYNC_FILE_RANGE_WAIT_BEFORE);
    sync(begun_, written_, SYNC_FILE_RANGE_WRITE);
    waited_ = begun_;
    begun_ = written_;
  }
}

void OutputFile::sync(uint64_t from, uint64_t to, unsigned how) {
  const bool done =
      from == to ||
      sync_file_range(
          file_.get(), static_cast<off64_t>(from), static_cast<off64_t>(to - from), how) == 0;
  // File systems without it refuse, and leave everything to fsync. A write error that is reported
  // here is not reported by fsync again.
  if (!done && errno != EINVAL && errno != ENOSYS && errno != ESPIPE) {
    throw_errno(path_, "cannot be written");
  }
}

void OutputFile::finish() {
  flush();
  if (fsync(file_.get()) != 0) {
    throw_errno(path_, "cannot be flushed to disk");
  }
  // Some file systems (NFS, quotas) report a full disk only here.
  if (close(file_.release()) != 0) {
    const int why = errno;
    unlink(path_.c_str());
    errno = why;
    throw_errno(path_, "cannot be closed");
  }
}

}  // namespace lockstep::storage
