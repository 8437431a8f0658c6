// SPDX-License-Identifier: Apache-2.0
#include "lockstep/offload/scratch_file.h"

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file_map.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::offload {
namespace {

// Offsets that can be mapped with any page size of a processor: 4, 16 or 64 KiB.
constexpr int64_t kMapAlignment = int64_t{1} << 16;

std::string message_of(int error) {
  return std::generic_category().message(error);
}

/// Returns the descriptor of a new file without a name, or -1 with errno.
int open_unnamed(const std::filesystem::path& folder) {
  const int file = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) {
    return file;
  }
  // The file system cannot create a file without a name: remove the name at once.
  std::string name = (folder / "lockstep-offload-XXXXXX").string();
  const int named = mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) {
    unlink(name.c_str());
  }
  return named;
}

}  // namespace

class ScratchFile::Opened {
 public:
  Opened(const std::filesystem::path& folder, std::string what);

  int fd() const { return file_.get(); }
  const std::filesystem::path& folder() const { return folder_; }
  const std::string& what() const { return what_; }
  void read(int64_t offset, void* to, int64_t bytes) const;
  [[noreturn]] void refuse(const char* doing, const std::string& because) const;

 private:
  std::filesystem::path folder_;
  std::string what_;
  UniqueFd file_;
};

namespace {

/// The context of a mapping's DataPtr: the memory to unmap, and its offset in the file.
struct Mapping {
  FileMap map;
  std::shared_ptr<const ScratchFile::Opened> file;
  int64_t offset;
};

void unmap(void* context) {
  delete static_cast<Mapping*>(context);
}

}  // namespace

ScratchFile::Opened::Opened(const std::filesystem::path& folder, std::string what)
    : folder_(folder), what_(std::move(what)) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder_, error)) {
    throw ConfigError(
        "offload",
        fmt::format(
            "nvme_path is not a folder, so {} cannot be stored in it; got '{}', expected an "
            "existing folder; create it on a fast disk",
            what_,
            folder_.string()));
  }
  file_.reset(open_unnamed(folder_));
  if (!file_.is_open()) {
    throw ConfigError(
        "offload",
        fmt::format(
            "{} cannot be stored in nvme_path '{}': {}; expected a folder that this user may write "
            "to",
            what_,
            folder_.string(),
            message_of(errno)));
  }
}

void ScratchFile::Opened::refuse(const char* doing, const std::string& because) const {
  throw ConfigError(
      "offload",
      fmt::format(
          "{} could not be {} in nvme_path '{}': {}; its values are lost; try another disk, and "
          "resume from the last checkpoint",
          what_,
          doing,
          folder_.string(),
          because));
}

void ScratchFile::Opened::read(int64_t offset, void* to, int64_t bytes) const {
  auto* place = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = pread(fd(), place, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      refuse("read", got < 0 ? message_of(errno) : "the file was truncated");
    }
    place += got;
    offset += got;
    bytes -= got;
  }
}

ScratchFile::ScratchFile(const std::filesystem::path& folder, std::string what)
    : file_(std::make_shared<Opened>(folder, std::move(what))) {}

int64_t ScratchFile::rounded(int64_t bytes) {
  return (bytes + kMapAlignment - 1) / kMapAlignment * kMapAlignment;
}

void ScratchFile::reserve(int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t wanted = taken_ + rounded(bytes);
  if (wanted <= size_) {
    return;
  }
  struct statvfs status {};
  const bool known = fstatvfs(file_->fd(), &status) == 0;
  const auto free = known ? static_cast<int64_t>(status.f_bavail * status.f_frsize) : 0;
  const auto refuse_size = [&](const std::string& because) {
    throw ConfigError(
        "offload",
        fmt::format(
            "{} does not fit into nvme_path '{}': {}; got {} bytes free, expected {}; try another "
            "disk, or more ranks on other hosts",
            file_->what(),
            file_->folder().string(),
            because,
            free,
            wanted - size_));
  };
  if (known && wanted - size_ > free) {
    refuse_size(message_of(ENOSPC));
  }
  int failed = 0;
  do {
    failed = fallocate(file_->fd(), 0, size_, wanted - size_) == 0 ? 0 : errno;
  } while (failed == EINTR);
  if (failed == EOPNOTSUPP) {
    failed = ftruncate(file_->fd(), wanted) == 0 ? 0 : errno;
  }
  if (failed != 0) {
    refuse_size(message_of(failed));
  }
  size_ = wanted;
}

int64_t ScratchFile::take(int64_t bytes) {
  reserve(bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(taken_, taken_ + rounded(bytes));
}

void ScratchFile::read(int64_t offset, void* to, int64_t bytes) const {
  file_->read(offset, to, bytes);
}

void ScratchFile::write(int64_t offset, const void* from, int64_t bytes) {
  const auto* place = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t done = pwrite(file_->fd(), place, static_cast<size_t>(bytes), offset);
    if (done < 0 && errno == EINTR) {
      continue;
    }
    if (done <= 0) {
      file_->refuse("written", message_of(done < 0 ? errno : EIO));
    }
    place += done;
    offset += done;
    bytes -= done;
  }
}

at::DataPtr ScratchFile::map(int64_t offset, int64_t bytes) const {
  const auto length = static_cast<size_t>(rounded(bytes));
  FileMap map(file_->fd(), length, PROT_READ | PROT_WRITE, MAP_SHARED, offset);
  if (!map.is_mapped()) {
    file_->refuse("mapped", message_of(errno));
  }
  void* const begin = map.data();
  return {begin, new Mapping{std::move(map), file_, offset}, &unmap, at::kCPU};
}

at::Tensor in_memory(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) {
    return tensor;
  }
  const auto* const mapping = tensor.storage().data_ptr().cast_context<Mapping>(&unmap);
  if (mapping == nullptr) {
    return tensor;
  }
  int64_t span = 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    span += (tensor.size(i) - 1) * tensor.stride(i);
  }
  const auto width = static_cast<int64_t>(tensor.itemsize());
  at::Tensor copy = at::empty({span}, tensor.options());
  mapping->file->read(
      mapping->offset + tensor.storage_offset() * width, copy.mutable_data_ptr(), span * width);
  return copy.as_strided(tensor.sizes(), tensor.strides());
}

void release_pages(void* begin, int64_t bytes) {
  // Written pages of a shared mapping stay in the page cache.
  madvise(begin, static_cast<size_t>(bytes), MADV_DONTNEED);
}

}  // namespace lockstep::offload
