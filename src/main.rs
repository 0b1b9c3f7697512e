//! The `clientapp-operator` binary.

fn main() -> std::process::ExitCode {
    clientapp_operator::cli::main()
}
