// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

/// Formats the help of a command: with our usage line, since CLI11 does not know the arguments that
/// split_arguments() keeps, with the choices of an option in its description, and wrapped to the
/// width of the terminal.
class UsageFormatter : public CLI::Formatter {
 public:
  explicit UsageFormatter(std::string usage) : usage_(std::move(usage)) {}
  std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
    return "Usage: " + usage_ + "\n";
  }
  std::string make_description(const CLI::App* app) const override {
    return app->get_description() + "\n\n";
  }
  std::string make_help(
      const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
  std::string make_subcommands(const CLI::App* app, CLI::AppFormatMode mode) const override;
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_desc(const CLI::Option* option) const override;

 private:
  std::string usage_;
};

/// Sets the usage line, the footer with examples, and the help option of a command.
inline void set_help(CLI::App& command, const std::string& usage, const std::string& footer) {
  command.formatter(std::make_shared<UsageFormatter>(usage));
  command.footer(footer);
  command.set_help_flag("-h,--help", "Print this help and exit");
}

}  // namespace lockstep::cli
