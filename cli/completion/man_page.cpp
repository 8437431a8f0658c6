// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "cli/common/build_facts.h"
#include "cli/completion/completion.h"

namespace lockstep::cli {
namespace {

constexpr const char* kEnd = R"(.SH EXIT STATUS
.TP
.B 0
Success.
.TP
.B 1
A failure; the message has the reason.
.TP
.B 2
A usage or configuration error.
.TP
.B 75
A job saved its state after a signal to stop.
.TP
.B 128+N
Signal N ended a rank, or the job.
.PP
Otherwise
.B lockstep launch
ends with the code of the rank that failed first.
.SH FILES
.TP
.I $XDG_CONFIG_HOME/lockstep/config.yaml
Settings, unless LOCKSTEP_CONFIG_FILE names another file; ~/.config is the default folder.
.SH SEE ALSO
.BR mpirun (1),
.BR srun (1),
.BR ssh (1)
)";

/// Escapes a text for roff.
std::string roff_escaped(const std::string& text) {
  std::string result;
  bool line_begins = true;
  for (const char c : text) {
    if (line_begins && (c == '.' || c == '\'')) {
      result += "\\&";
    }
    line_begins = c == '\n';
    switch (c) {
      case '\\':
        result += "\\e";
        break;
      case '-':
        result += "\\-";
        break;
      case '\'':
        result += "\\(aq";
        break;
      case '`':
        result += "\\(ga";
        break;
      case '^':
        result += "\\(ha";
        break;
      case '~':
        result += "\\(ti";
        break;
      case '"':
        result += "\\(dq";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string option_text(const OptionEntry& option) {
  std::string head;
  for (const std::string& name : option.names) {
    head += (head.empty() ? "" : ", ") + fmt::format("\\fB{}\\fR", roff_escaped(name));
  }
  if (!option.value.empty()) {
    head += fmt::format(" \\fI{}\\fR", roff_escaped(option.value));
  }
  std::string choices;
  for (const std::string& choice : option.choices) {
    choices += (choices.empty() ? "One of " : ", ") + choice;
  }
  return fmt::format(
      ".TP\n{}\n{}.\n{}",
      head,
      roff_escaped(option.description),
      choices.empty() ? "" : roff_escaped(choices) + ".\n");
}

/// Formats the footer of --help line by line.
std::string footer_text(const std::string& footer) {
  return footer.empty() ? "" : fmt::format(".PP\n.nf\n{}\n.fi\n", roff_escaped(footer));
}

std::string command_text(const CommandEntry& command) {
  std::string text = fmt::format(
      ".SS lockstep {}\n{}.\n.PP\n.nf\n\\fB{}\\fR\n.fi\n",
      roff_escaped(command.path),
      roff_escaped(command.description),
      roff_escaped(command.usage));
  for (const OptionEntry& option : command.options) {
    text += option_text(option);
  }
  return text + footer_text(command.footer);
}

}  // namespace

std::string man_page(const CommandEntry& root) {
  std::string text = fmt::format(
      ".TH LOCKSTEP 1 \"\" \"lockstep {}\" \"User Commands\"\n"
      ".SH NAME\nlockstep \\- train a model on many processes\n"
      ".SH SYNOPSIS\n.B lockstep\n.I COMMAND\n.RI [ OPTIONS ]\n"
      ".SH DESCRIPTION\n{}\n.PP\nOptions may be written with _ for \\-.\n"
      ".SH OPTIONS\n",
      kBuild.version,
      roff_escaped(root.description));
  for (const OptionEntry& option : root.options) {
    text += option_text(option);
  }
  text += ".SH COMMANDS\n";
  for_each_command(root, [&](const CommandEntry& command) {
    text += command.path.empty() ? "" : command_text(command);
  });
  return text + kEnd;
}

}  // namespace lockstep::cli
