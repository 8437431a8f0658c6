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

// Enough for a disk to be busy all the time, and nothing to a machine's memory.
constexpr uint64_t kAheadBytes = uint64_t{64} << 20;

std::string_view unproven_bytes(const storage::TensorSet& set, const storage::TensorSlice& piece) {
  const storage::SafetensorsMap& file = set.file(piece.file);
  return file.bytes(file.entries()[piece.entry]);
}

/// In the order in which they are proven, which is about that of the files.
std::vector<storage::TensorSlice> slices_of(const storage::TensorSet& set) {
  std::vector<storage::TensorSlice> pieces;
  for (const storage::SetTensor& tensor : set.tensors()) {
    pieces.insert(pieces.end(), tensor.pieces.begin(), tensor.pieces.end());
  }
  return pieces;
}

/// Those whose middle lies in the share's part of all their bytes laid end to end.
std::vector<storage::TensorSlice> slices_of_share(
    const storage::TensorSet& set, const ProofShare& share) {
  LOCKSTEP_ASSERT(share.index >= 0 && share.index < share.of, "a share is one of them all");
  std::vector<storage::TensorSlice> pieces = slices_of(set);
  uint64_t all_bytes = 0;
  for (const storage::TensorSlice& piece : pieces) {
    all_bytes += unproven_bytes(set, piece).size();
  }
  const auto bound = [&](int index) {
    return all_bytes / static_cast<uint64_t>(share.of) * static_cast<uint64_t>(index);
  };
  uint64_t at = 0;
  std::erase_if(pieces, [&](const storage::TensorSlice& piece) {
    const uint64_t bytes = unproven_bytes(set, piece).size();
    const uint64_t middle = at + bytes / 2;
    at += bytes;
    return middle < bound(share.index) ||
           (share.index + 1 < share.of && middle >= bound(share.index + 1));
  });
  return pieces;
}

/// All of them, those of the share first: so that the processes of a host read different parts of
/// the disk, and each finds the others' in memory.
std::vector<storage::TensorSlice> slices_from_share(
    const storage::TensorSet& set, const ProofShare& share) {
  std::vector<storage::TensorSlice> pieces = slices_of(set);
  const std::vector<storage::TensorSlice> own = slices_of_share(set, share);
  if (!own.empty()) {
    const auto is_first = [&own](const storage::TensorSlice& piece) {
      return piece.file == own.front().file && piece.entry == own.front().entry;
    };
    std::rotate(pieces.begin(), std::find_if(pieces.begin(), pieces.end(), is_first), pieces.end());
  }
  return pieces;
}

/// Tells the kernel what will be wanted soon: by itself it reads a little at a time, as it is
/// touched, and the disk is idle in between. Thread-safe.
class ReadAhead {
 public:
  ReadAhead(const storage::TensorSet& set, const std::vector<storage::TensorSlice>& pieces)
      : set_(&set), slices_(&pieces) {}

  /// That piece is what is read next.
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
  std::string_view bytes(size_t index) const { return unproven_bytes(*set_, (*slices_)[index]); }

  static void will_need(std::string_view bytes) {
    static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t past_page = std::bit_cast<uintptr_t>(bytes.data()) % page;
    // Only advice: a kernel that does not take it reads all the same. MADV_WILLNEED changes
    // nothing.
    madvise(const_cast<char*>(bytes.data() - past_page), bytes.size() + past_page, MADV_WILLNEED);
  }

  std::mutex mutex_;
  const storage::TensorSet* set_;
  const std::vector<storage::TensorSlice>* slices_;
  size_t passed_ = 0;
  size_t wanted_ = 0;
  uint64_t ahead_bytes_ = 0;  ///< Of those asked for, what is not passed yet.
};

/// Reads what this process proves, and proves it; or, of a proof of nothing, reads it all.
void prove(const storage::TensorSet& set, const ProofShare& share, int threads) {
  const std::vector<storage::TensorSlice> pieces =
      share.nothing ? slices_from_share(set, share) : slices_of_share(set, share);
  ReadAhead ahead(set, pieces);
  for_each_index(pieces.size(), threads, [&](size_t i) {
    ahead.before(i);
    if (share.nothing) {
      const storage::SafetensorsMap& file = set.file(pieces[i].file);
      file.fetch(file.entries()[pieces[i].entry]);
    } else {
      set.bytes(pieces[i]);  // Compares its checksum.
    }
  });
}

at::Tensor put_together(const storage::TensorSet& set, const storage::SetTensor& wanted) {
  if (wanted.pieces.size() == 1) {
    const storage::TensorSlice& piece = wanted.pieces.front();
    const storage::SafetensorsMap& file = set.file(piece.file);
    return tensor_of(file, file.entries()[piece.entry]).view(wanted.shape);
  }
  at::Tensor whole = at::empty(wanted.shape, at::TensorOptions().dtype(scalar_type(wanted.dtype)));
  auto* begin = static_cast<std::byte*>(whole.mutable_data_ptr());
  for (const storage::TensorSlice& piece : wanted.pieces) {
    const std::string_view bytes = unproven_bytes(set, piece);
    std::memcpy(
        begin + static_cast<size_t>(piece.begin) * storage::dtype_bytes(wanted.dtype),
        bytes.data(),
        bytes.size());
  }
  return whole;
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
    const std::string& stem, int threads, const ProofShare& share) const {
  const storage::TensorSet set(*this, stem);
  prove(set, share, threads);
  NamedTensors tensors(set.tensors().size());
  for_each_index(tensors.size(), threads, [&](size_t i) {
    const storage::SetTensor& wanted = set.tensors()[i];
    tensors[i] = {wanted.name, put_together(set, wanted)};
  });
  return tensors;
}

}  // namespace lockstep::checkpoint
