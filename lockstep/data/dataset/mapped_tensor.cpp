// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/dataset/mapped_tensor.h"

#include <cerrno>
#include <fcntl.h>
#include <limits>
#include <memory>
#include <sys/stat.h>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/from_blob.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file_map.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::data {
namespace {

int64_t record_bytes(
    const std::string& path, const std::vector<int64_t>& record_shape, int64_t element_bytes) {
  int64_t bytes = element_bytes;
  for (const int64_t size : record_shape) {
    if (size < 1 || bytes > std::numeric_limits<int64_t>::max() / size) {
      throw ConfigError(
          path,
          fmt::format(
              "record_shape is out of range; got [{}], expected positive sizes",
              fmt::join(record_shape, ", ")));
    }
    bytes *= size;
  }
  return bytes;
}

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw ConfigError(path, fmt::format("{}; {}", what, std::generic_category().message(errno)));
}

/// Maps a regular file for reading: writing to the memory ends the process with SIGSEGV.
std::shared_ptr<const FileMap> map_for_reading(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) {
    fail(path, "cannot be opened");
  }
  struct stat status {};
  if (fstat(file.get(), &status) != 0) {
    fail(path, "cannot be examined");
  }
  if (!S_ISREG(status.st_mode)) {
    throw ConfigError(path, "cannot be mapped; expected a regular file");
  }
  auto map = std::make_shared<const FileMap>(
      file.get(), static_cast<size_t>(status.st_size), PROT_READ, MAP_SHARED);
  if (!map->is_mapped()) {
    fail(path, "cannot be mapped");
  }
  return map;
}

}  // namespace

at::Tensor mapped_tensor(
    const std::string& path,
    at::ScalarType dtype,
    const std::vector<int64_t>& record_shape,
    int64_t offset_bytes) {
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t bytes = record_bytes(path, record_shape, element_bytes);
  std::shared_ptr<const FileMap> file = map_for_reading(path);
  const auto file_bytes = static_cast<int64_t>(file->size());
  if (offset_bytes < 0 || offset_bytes > file_bytes || offset_bytes % element_bytes != 0) {
    throw ConfigError(
        path,
        fmt::format(
            "offset_bytes is out of range; got {} in a file of {} bytes, expected a multiple of {} "
            "within the file",
            offset_bytes,
            file_bytes,
            element_bytes));
  }
  const int64_t rest = file_bytes - offset_bytes;
  if (rest % bytes != 0) {
    throw ConfigError(
        path,
        fmt::format(
            "does not contain full records; got {} bytes after an offset of {}, expected a "
            "multiple of {} ({} elements of {} bytes each); {} bytes are left over",
            rest,
            offset_bytes,
            bytes,
            bytes / element_bytes,
            element_bytes,
            rest % bytes));
  }
  std::vector<int64_t> shape = {rest / bytes};
  shape.insert(shape.end(), record_shape.begin(), record_shape.end());
  // Tensors cannot be marked read-only; the read-only mapping refuses writes.
  std::byte* const first = file->data();
  return at::from_blob(
      first == nullptr ? nullptr : first + offset_bytes,
      shape,
      [file](void*) mutable { file.reset(); },
      at::TensorOptions().dtype(dtype));
}

}  // namespace lockstep::data
