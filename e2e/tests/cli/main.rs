//! What people type: the operator's commands, those of the kubectl plugin, and every command of the documents.

mod commands;
mod plugin;
mod readme;
