// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

/// Help with a usage line of its own: CLI11 knows nothing of the words that split_arguments keeps
/// from it.
class UsageFormatter : public CLI::Formatter {
 public:
  explicit UsageFormatter(std::string usage) : usage_(std::move(usage)) {}
  std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
    return "Usage: " + usage_ + "\n";
  }

 private:
  std::string usage_;
};

/// What every command's help has: that line, the examples, and how to ask for it.
inline void set_help(CLI::App& command, const std::string& usage, const std::string& footer) {
  command.formatter(std::make_shared<UsageFormatter>(usage));
  command.footer(footer);
  command.set_help_flag("-h,--help", "Print this and exit");
}

}  // namespace lockstep::cli
