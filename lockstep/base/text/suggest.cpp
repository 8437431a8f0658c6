// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/text/suggest.h"

#include <algorithm>
#include <cstddef>

#include "lockstep/base/text/words.h"

namespace lockstep {
namespace {

/// Counts insertions, deletions, substitutions and swaps of neighbours (Damerau, restricted) from a
/// to b.
size_t edits(const std::string& a, const std::string& b) {
  std::vector<size_t> two_back(b.size() + 1);
  std::vector<size_t> back(b.size() + 1);
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    two_back.swap(back);
    back.swap(row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = back[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({back[j] + 1, row[j - 1] + 1, substitute});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], two_back[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

}  // namespace

std::string did_you_mean(const std::string& got, const std::vector<std::string>& known) {
  constexpr size_t kLongestName = 64;  // The table is quadratic, and no name is that long.
  if (got.size() > kLongestName) {
    return "";
  }
  const std::string* best = nullptr;
  size_t best_edits = std::max<size_t>(1, got.size() / 3) + 1;
  for (const std::string& name : known) {
    const size_t distance = edits(lower(got), lower(name));
    // A name that shares nothing with `got` is no suggestion.
    if (distance < best_edits && distance < got.size()) {
      best_edits = distance;
      best = &name;
    }
  }
  return best == nullptr || got.empty() ? "" : "; did you mean '" + *best + "'?";
}

}  // namespace lockstep
