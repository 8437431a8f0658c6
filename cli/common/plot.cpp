// SPDX-License-Identifier: Apache-2.0
#include "cli/common/plot.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace lockstep::cli {

std::string render_plot(const std::vector<double>& values, size_t width, size_t height) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const size_t columns = std::min(width, values.size());
  std::vector<std::string> lines(height, std::string(columns, ' '));
  const auto line_of = [&, low = *least, high = *most](double value) {
    const double part = high > low ? (value - low) / (high - low) : 0;
    return height - 1 - static_cast<size_t>(std::lround(part * static_cast<double>(height - 1)));
  };
  for (size_t column = 0; column < columns; ++column) {
    const auto begin =
        values.begin() + static_cast<std::ptrdiff_t>(column * values.size() / columns);
    const auto end =
        values.begin() + static_cast<std::ptrdiff_t>((column + 1) * values.size() / columns);
    const auto [low, high] = std::minmax_element(begin, end);
    for (size_t line = line_of(*high); line <= line_of(*low); ++line) {
      lines[line][column] = '*';
    }
  }
  const std::string top = fmt::format("{:.6g}", *most);
  const std::string bottom = fmt::format("{:.6g}", *least);
  const size_t label = std::max(top.size(), bottom.size());
  std::string text;
  for (size_t i = 0; i < height; ++i) {
    const std::string& name = i == 0 ? top : i + 1 == height ? bottom : "";
    std::string line = fmt::format("  {:>{}} |{}", name, label, lines[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  const std::string last = std::to_string(values.size() - 1);
  const size_t gap = columns > last.size() + 1 ? columns - last.size() - 1 : 1;
  const std::string margin(label + 4, ' ');
  text += fmt::format("{}{}\n", std::string(label + 3, ' '), "+" + std::string(columns, '-'));
  return text + (values.size() == 1
                     ? margin + "0\n"
                     : fmt::format("{}0{}{}\n", margin, std::string(gap, ' '), last));
}

}  // namespace lockstep::cli
