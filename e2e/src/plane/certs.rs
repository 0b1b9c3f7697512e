//! A certificate authority, the plane's or a test's, and its certificates.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};

/// The addresses of the API server in planes of either family: the loopback address, and the first of the range of Services, under which
/// pods would reach it.
const APISERVER: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x10, 0, 0, 0, 0, 0, 1)),
];

/// Signs certificates. Its key is never written to disk.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate with its key, both PEM.
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    /// `called`: unlike its certificates, which would count as self-signed.
    pub fn new(called: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name(called, None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// The API server's serving certificate.
    pub(super) fn apiserver(&self) -> Result<Identity> {
        let service = "kubernetes.default.svc.cluster.local";
        let services = service.match_indices('.').map(|(end, _)| &service[..end]);
        let names = services.chain([service, "localhost"]).map(str::to_owned);
        let addresses = APISERVER.map(|address| address.to_string());
        self.server("kube-apiserver", names.chain(addresses).collect())
    }

    /// The serving certificate of a server with these names and addresses.
    pub fn server(&self, called: &str, names: Vec<String>) -> Result<Identity> {
        self.sign(CertificateParams::new(names)?, name(called, None), ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// The same, which has expired.
    pub fn expired_server(&self, called: &str, names: Vec<String>) -> Result<Identity> {
        let mut params = CertificateParams::new(names)?;
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2020, 2, 1));
        self.sign(params, name(called, None), ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A client certificate, such as for the API server: the common name is the user, the organization a group.
    pub fn client(&self, user: &str, group: Option<&str>) -> Result<Identity> {
        self.sign(CertificateParams::default(), name(user, group), ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        name: DistinguishedName,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<Identity> {
        let key = KeyPair::generate()?;
        params.distinguished_name = name;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        Ok(Identity { certificate: params.signed_by(&key, &self.0)?.pem(), key: key.serialize_pem() })
    }
}

impl Identity {
    /// A certificate that is its own authority, as cert-manager's issuer `selfSigned` makes them, for a server or a client of this name.
    pub(crate) fn self_signed(called: &str) -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![called.to_owned()])?;
        params.distinguished_name = name(called, None);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        Ok(Self { certificate: params.self_signed(&key)?.pem(), key: key.serialize_pem() })
    }
}

/// The key pair for service account tokens: private and public key, PEM.
pub(crate) fn token_keys() -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

fn name(common_name: &str, organization: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    name
}
