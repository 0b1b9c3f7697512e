//! Encryption with age (age-encryption.org) for a public key, so a pod that dumps cannot read earlier dumps. `age --decrypt` opens the
//! files too. **Pure.**

use std::{
    fmt,
    io::{self, Read, Write},
    iter,
    str::FromStr,
};

use super::error::Error;

/// A public key.
#[derive(Clone)]
pub(crate) struct Recipient(age::x25519::Recipient);

impl FromStr for Recipient {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Recipient, Self::Err> {
        text.parse().map(Recipient).map_err(|_| "a public age key is expected, as `age-keygen` prints it: age1…")
    }
}

impl fmt::Display for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A secret key, which never prints.
#[derive(Clone)]
pub(crate) struct Identity(age::x25519::Identity);

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

impl Identity {
    /// From a file as `age-keygen` writes it, with comments.
    pub(crate) fn parse(text: &str) -> Option<Identity> {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines.next()?.parse().ok().map(Identity)
    }

    /// The corresponding public key.
    pub(crate) fn recipient(&self) -> String {
        self.0.to_public().to_string()
    }
}

/// Writes encrypted or plain.
pub(crate) enum Sealed<W: Write> {
    Plain(W),
    For(Box<age::stream::StreamWriter<W>>),
}

impl<W: Write> Sealed<W> {
    pub(crate) fn new(output: W, recipient: Option<&Recipient>) -> Result<Sealed<W>, Error> {
        let Some(Recipient(recipient)) = recipient else { return Ok(Sealed::Plain(output)) };
        let encrypt = |error: &dyn fmt::Display| Error::Encrypt(error.to_string());
        let encryptor = age::Encryptor::with_recipients(iter::once(recipient as _)).map_err(|error| encrypt(&error))?;
        Ok(Sealed::For(Box::new(encryptor.wrap_output(output).map_err(|error| encrypt(&error))?)))
    }

    /// Without it, encrypted data stay truncated.
    pub(crate) fn finish(self) -> io::Result<W> {
        match self {
            Sealed::Plain(output) => Ok(output),
            Sealed::For(stream) => stream.finish(),
        }
    }
}

impl<W: Write> Write for Sealed<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match self {
            Sealed::Plain(output) => output.write(data),
            Sealed::For(stream) => stream.write(data),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Sealed::Plain(output) => output.flush(),
            Sealed::For(stream) => stream.flush(),
        }
    }
}

/// Why a file cannot be read.
pub(crate) enum Closed {
    /// It is encrypted for another key, or its header is damaged.
    Key(String),
    Read(io::Error),
}

/// Decrypts what is read, if there is a key.
pub(crate) fn open<'a, R: Read + 'a>(input: R, identity: Option<&Identity>) -> Result<Box<dyn Read + 'a>, Closed> {
    let Some(Identity(identity)) = identity else { return Ok(Box::new(input)) };
    let closed = |error: age::DecryptError| match error {
        age::DecryptError::Io(error) => Closed::Read(error),
        error => Closed::Key(error.to_string()),
    };
    let decryptor = age::Decryptor::new(input).map_err(closed)?;
    Ok(Box::new(decryptor.decrypt(iter::once(identity as &dyn age::Identity)).map_err(closed)?))
}

/// Largest size after encryption: a header with one recipient, and sixteen bytes for each started 64 KiB.
pub(crate) fn size(plain: u64, recipient: Option<&Recipient>) -> u64 {
    match recipient {
        None => plain,
        Some(_) => plain + (plain / (64 << 10) + 1) * 16 + 1024,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> (Identity, Recipient) {
        let identity = age::x25519::Identity::generate();
        let recipient = Recipient(identity.to_public());
        (Identity(identity), recipient)
    }

    fn sealed(plain: &[u8], recipient: Option<&Recipient>) -> Vec<u8> {
        let mut stream = Sealed::new(Vec::new(), recipient).ok().unwrap();
        stream.write_all(plain).unwrap();
        stream.finish().unwrap()
    }

    fn opened(stored: &[u8], identity: Option<&Identity>) -> Option<Vec<u8>> {
        let mut plain = Vec::new();
        open(stored, identity).ok()?.read_to_end(&mut plain).ok()?;
        Some(plain)
    }

    #[test]
    fn what_is_sealed_opens_with_its_key_alone_and_whole() {
        let (identity, recipient) = key();
        for length in [0, 1, 65535, 65536, 65537, 200_000] {
            let plain = vec![7; length];
            assert_eq!(sealed(&plain, None), plain);
            let stored = sealed(&plain, Some(&recipient));
            assert!(stored.len() as u64 <= size(length as u64, Some(&recipient)));
            assert_eq!(opened(&stored, Some(&identity)), Some(plain));
            assert_eq!(opened(&stored, Some(&key().0)), None);
            for end in [0, 100, stored.len() / 2, stored.len() - 1] {
                assert_eq!(opened(&stored[..end], Some(&identity)), None, "{length} cut off at {end}");
            }
            let mut changed = stored.clone();
            *changed.last_mut().unwrap() ^= 1;
            assert_eq!(opened(&changed, Some(&identity)), None);
        }
    }

    #[test]
    fn a_file_with_a_key() {
        use age::secrecy::ExposeSecret as _;
        let secret = age::x25519::Identity::generate().to_string();
        let file = format!("# created: 2026-01-01\n# public key: age1\n{}\n", secret.expose_secret());
        let identity = Identity::parse(&file).unwrap();
        assert_eq!(format!("{identity:?}"), "…");
        for text in ["", "# nothing", "age1qqqq"] {
            assert!(Identity::parse(text).is_none(), "{text}");
        }
    }
}
