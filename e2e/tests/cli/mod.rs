//! Everything typed on the command line: the operator's commands, the kubectl plugin's, and every command in the
//! documents.

mod commands;
mod plugin;
mod readme;
