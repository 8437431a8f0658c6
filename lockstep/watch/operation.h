// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::watch {

enum class Stage : uint32_t { kIssued, kRunning, kDone, kFailed };

const char* name_of(Stage stage);

/// Describes one collective or message of one rank, in the form that the launcher reads: plain
/// bytes, no pointers. Times are CLOCK_MONOTONIC, the same for all processes of a host; 0 for
/// stages not reached.
struct Operation {
  static constexpr size_t kSizes = 6;
  static constexpr uint64_t kWorld = 0;

  uint64_t number = 0;      ///< Counts operations of this process, from 1.
  uint64_t group = kWorld;  ///< Equal on all members of a group; the job's own group is kWorld.
  int64_t sequence = -1;    ///< Counts collectives of the group, from 0; -1 for send and recv.
  int64_t step = 0;         ///< The training step it belongs to.
  int64_t issued_ns = 0;    ///< The program requested it.
  int64_t started_ns = 0;   ///< Earlier operations were done.
  int64_t ended_ns = 0;
  std::array<int64_t, kSizes> sizes{};  ///< The tensor's first sizes.
  std::array<char, 20> name{};          ///< "all_reduce", and so on; cut if longer.
  std::array<char, 12> reduce{};        ///< "sum"; empty for operations without reduction.
  std::array<char, 20> dtype{};         ///< "float32"; empty without a tensor.
  std::array<char, 24> call{};          ///< "backward": the program's call; empty if unknown.
  int32_t dims = -1;                    ///< -1: no tensor.
  int32_t peer = -1;                    ///< The peer of send and recv, or the root; -1: none.
  Stage stage = Stage::kIssued;

  bool is_over() const { return stage == Stage::kDone || stage == Stage::kFailed; }
  /// Formats "all_reduce(sum) of float32[10, 20] in backward" or "send to rank 1 of int64[3]".
  std::string describe() const;
};
static_assert(sizeof(Operation) % sizeof(uint64_t) == 0, "copied as words");

inline double seconds_of(int64_t ns) {
  return static_cast<double>(ns) / 1e9;
}

/// Returns `text`, cut to the size, padded with zeros.
template <size_t N>
std::array<char, N> short_text(std::string_view text) {
  std::array<char, N> out{};
  text.substr(0, N - 1).copy(out.data(), N - 1);
  return out;
}

/// Returns the text of short_text; safe for corrupted bytes.
template <size_t N>
std::string_view text_of(const std::array<char, N>& text) {
  const std::string_view all(text.data(), N);
  return all.substr(0, all.find('\0'));
}

}  // namespace lockstep::watch
