//! The `clientapp-operator` binary.

fn main() -> anyhow::Result<()> {
    clientapp_operator::cli::main()
}
