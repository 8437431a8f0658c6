// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/reader.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"
#include "lockstep/base/memory/parallel.h"
#include "lockstep/checkpoint/weights/safetensors.h"
#include "lockstep/storage/tensor_set.h"

namespace lockstep::checkpoint {
namespace {

// Keeps a disk busy, and is small compared with a machine's memory.
constexpr uint64_t kAheadBytes = uint64_t{64} << 20;

std::string_view unverified_bytes(
    const storage::TensorSet& set, const storage::TensorSlice& slice) {
  const storage::SafetensorsMap& file = set.file(slice.file);
  return file.bytes(file.entries()[slice.entry]);
}

/// Returns all slices in the order of verification, which is about that of the files.
std::vector<storage::TensorSlice> slices_of(const storage::TensorSet& set) {
  std::vector<storage::TensorSlice> slices;
  for (const storage::SetTensor& tensor : set.tensors()) {
    slices.insert(slices.end(), tensor.slices.begin(), tensor.slices.end());
  }
  return slices;
}

/// Returns the slices whose middle is in the share's range of their concatenated bytes.
std::vector<storage::TensorSlice> slices_of_share(
    const storage::TensorSet& set, const VerificationShare& share) {
  LOCKSTEP_ASSERT(
      share.index >= 0 && share.index < share.count, "the index of a share is out of range");
  std::vector<storage::TensorSlice> slices = slices_of(set);
  uint64_t all_bytes = 0;
  for (const storage::TensorSlice& slice : slices) {
    all_bytes += unverified_bytes(set, slice).size();
  }
  const auto bound = [&](int index) {
    return all_bytes / static_cast<uint64_t>(share.count) * static_cast<uint64_t>(index);
  };
  uint64_t at = 0;
  std::erase_if(slices, [&](const storage::TensorSlice& slice) {
    const uint64_t bytes = unverified_bytes(set, slice).size();
    const uint64_t middle = at + bytes / 2;
    at += bytes;
    return middle < bound(share.index) ||
           (share.index + 1 < share.count && middle >= bound(share.index + 1));
  });
  return slices;
}

/// Returns all slices, those of the share first. So the processes of a host read different parts of
/// the disk, and find the other parts in memory.
std::vector<storage::TensorSlice> slices_from_share(
    const storage::TensorSet& set, const VerificationShare& share) {
  std::vector<storage::TensorSlice> slices = slices_of(set);
  const std::vector<storage::TensorSlice> own = slices_of_share(set, share);
  if (!own.empty()) {
    const auto is_first = [&own](const storage::TensorSlice& slice) {
      return slice.file == own.front().file && slice.entry == own.front().entry;
    };
    std::rotate(slices.begin(), std::find_if(slices.begin(), slices.end(), is_first), slices.end());
  }
  return slices;
}

/// Announces to the kernel the slices that are read next. Without that it reads little at a time,
/// on access, and the disk is idle in between. Thread-safe.
class ReadAhead {
 public:
  ReadAhead(const storage::TensorSet& set, const std::vector<storage::TensorSlice>& slices)
      : set_(&set), slices_(&slices) {}

  /// Reports the slice that is read next.
  void before(size_t index) {
    const std::lock_guard<std::mutex> guard(mutex_);
    for (; passed_ < index; ++passed_) {
      ahead_bytes_ -= std::min(ahead_bytes_, bytes(passed_).size());
    }
    for (; wanted_ < slices_->size() && (wanted_ <= index || ahead_bytes_ < kAheadBytes);
         ++wanted_) {
      will_need(bytes(wanted_));
      ahead_bytes_ += bytes(wanted_).size();
    }
  }

 private:
  std::string_view bytes(size_t index) const { return unverified_bytes(*set_, (*slices_)[index]); }

  static void will_need(std::string_view bytes) {
    static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t past_page = std::bit_cast<uintptr_t>(bytes.data()) % page;
    // Only advice: a kernel that ignores it reads the same data later.
    madvise(const_cast<char*>(bytes.data() - past_page), bytes.size() + past_page, MADV_WILLNEED);
  }

  std::mutex mutex_;
  const storage::TensorSet* set_;
  const std::vector<storage::TensorSlice>* slices_;
  size_t passed_ = 0;
  size_t wanted_ = 0;
  uint64_t ahead_bytes_ = 0;  ///< Announced bytes that were not read yet.
};

/// Reads and verifies the slices of this process's share; without verification, reads all slices.
void verify(const storage::TensorSet& set, const VerificationShare& share, int threads) {
  const std::vector<storage::TensorSlice> slices =
      share.unverified ? slices_from_share(set, share) : slices_of_share(set, share);
  ReadAhead ahead(set, slices);
  for_each_index(slices.size(), threads, [&](size_t i) {
    ahead.before(i);
    if (share.unverified) {
      const storage::SafetensorsMap& file = set.file(slices[i].file);
      file.fetch(file.entries()[slices[i].entry]);
    } else {
      set.bytes(slices[i]);  // Compares its checksum.
    }
  });
}

at::Tensor assembled(const storage::TensorSet& set, const storage::SetTensor& wanted) {
  if (wanted.slices.size() == 1) {
    const storage::TensorSlice& slice = wanted.slices.front();
    const storage::SafetensorsMap& file = set.file(slice.file);
    return tensor_of(file, file.entries()[slice.entry]).view(wanted.shape);
  }
  at::Tensor full = at::empty(wanted.shape, at::TensorOptions().dtype(scalar_type(wanted.dtype)));
  auto* begin = static_cast<std::byte*>(full.mutable_data_ptr());
  for (const storage::TensorSlice& slice : wanted.slices) {
    const std::string_view bytes = unverified_bytes(set, slice);
    std::memcpy(
        begin + static_cast<size_t>(slice.begin) * storage::dtype_bytes(wanted.dtype),
        bytes.data(),
        bytes.size());
  }
  return full;
}

}  // namespace

NamedTensors Reader::tensors(const std::string& file_name) const {
  const storage::SafetensorsMap file = tensor_map(file_name);
  NamedTensors tensors;
  for (const storage::TensorEntry& entry : file.entries()) {
    tensors.push_back({entry.name, tensor_of(file, entry)});
  }
  return tensors;
}

NamedTensors Reader::tensor_set(
    const std::string& stem, int threads, const VerificationShare& share) const {
  const storage::TensorSet set(*this, stem);
  verify(set, share, threads);
  NamedTensors tensors(set.tensors().size());
  for_each_index(tensors.size(), threads, [&](size_t i) {
    const storage::SetTensor& wanted = set.tensors()[i];
    tensors[i] = {wanted.name, assembled(set, wanted)};
  });
  return tensors;
}

}  // namespace lockstep::checkpoint
