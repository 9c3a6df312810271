"""Workbooks of one's own making, as Excel writes them."""

import zipfile
import zlib
from base64 import b85decode
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from xml.sax.saxutils import escape

HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>'
MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
FIRST_DAY = date(1899, 12, 30)
STYLES = (
    f'<styleSheet xmlns="{MAIN}"><fonts count="1"><font/></fonts><fills count="1"><fill/></fills>'
    '<borders count="1"><border/></borders><cellStyleXfs count="1"><xf/></cellStyleXfs>'
    '<cellXfs count="2"><xf numFmtId="0"/><xf numFmtId="14" applyNumberFormat="1"/></cellXfs>'
    "</styleSheet>"
)


def write_workbook(path: Path, sheets: Mapping[str, Sequence[Sequence[object]]]) -> Path:
    """A text that begins with # is an error, such as #N/A; None is an empty cell."""
    numbers = range(1, len(sheets) + 1)
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types">'
        '<Default Extension="rels" ContentType='
        '"application/vnd.openxmlformats-package.relationships+xml"/>'
        '<Default Extension="xml" ContentType="application/xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="r"'
        f' Type="{OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{MAIN}" xmlns:r="{OFFICE}"><sheets>'
        + "".join(
            f'<sheet name="{escape(name)}" sheetId="{n}" r:id="rId{n}"/>'
            for n, name in zip(numbers, sheets, strict=True)
        )
        + "</sheets></workbook>",
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{PACKAGE}/relationships">'
        + "".join(
            f'<Relationship Id="rId{n}" Type="{OFFICE}/worksheet"'
            f' Target="worksheets/sheet{n}.xml"/>'
            for n in numbers
        )
        + f'<Relationship Id="s" Type="{OFFICE}/styles" Target="styles.xml"/></Relationships>',
        "xl/styles.xml": STYLES,
    }
    for n, rows in zip(numbers, sheets.values(), strict=True):
        lines = "".join(
            f'<row r="{r}">{"".join(_cell(r, c, value) for c, value in enumerate(row))}</row>'
            for r, row in enumerate(rows, start=1)
        )
        parts[f"xl/worksheets/sheet{n}.xml"] = (
            f'<worksheet xmlns="{MAIN}"><sheetData>{lines}</sheetData></worksheet>'
        )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(name, HEAD + text)
    return path


def write_ods(path: Path, rows: Sequence[Sequence[object]]) -> Path:
    """One sheet of texts, numbers and dates in the format of LibreOffice."""
    spaces = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
        for name in ("office", "table", "text")
    )
    lines = "".join(
        f"<table:table-row>{''.join(map(_ods_cell, row))}</table:table-row>" for row in rows
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        kind = "application/vnd.oasis.opendocument.spreadsheet"
        archive.writestr("mimetype", kind, zipfile.ZIP_STORED)
        archive.writestr("META-INF/manifest.xml", f"{HEAD}<manifest/>")
        archive.writestr(
            "content.xml",
            f"{HEAD}<office:document-content {spaces}><office:body><office:spreadsheet><table:table"
            f' table:name="A">{lines}</table:table></office:spreadsheet></office:body>'
            "</office:document-content>",
        )
    return path


def _ods_cell(value: object) -> str:
    kind, key = "string", "string-value"
    if isinstance(value, int | float):
        kind, key = "float", "value"
    elif isinstance(value, date):
        kind, key = "date", "date-value"
    return (
        f'<table:table-cell office:value-type="{kind}" office:{key}="{value}">'
        f"<text:p>{escape(str(value))}</text:p></table:table-cell>"
    )


def _cell(row: int, column: int, value: object) -> str:
    place = f"{chr(65 + column)}{row}"
    if value is None:
        return ""
    if isinstance(value, bool):
        return f'<c r="{place}" t="b"><v>{int(value)}</v></c>'
    if isinstance(value, int | float):
        return f'<c r="{place}"><v>{value!r}</v></c>'
    if isinstance(value, date):
        day = value.date() if isinstance(value, datetime) else value
        return f'<c r="{place}" s="1"><v>{(day - FIRST_DAY).days}</v></c>'
    text = escape(str(value))
    if text.startswith("#"):
        return f'<c r="{place}" t="e"><v>{text}</v></c>'
    return f'<c r="{place}" t="inlineStr"><is><t>{text}</t></is></c>'


def unpacked(text: str) -> bytes:
    """The file."""
    return zlib.decompress(b85decode(text))


# The table of tests/client/test_file_formats.py, written by xlwt 1.3.0.
XLS = (
    "c-"
    "rmSS!`5Q7zglkXFBanmsz^6)9Jo1bC>SzU;#l$YsG*d1ZkmQX;Vn;i}e8n;l*G~NK8<p!GMWNP<c=ciu#~2!HD7m35EpF"
    "_y7qBiCYvpp7X!okbCf$&_ppLb4b6rbMO4-"
    "e`oIfZVxm4=1l0~;rEI!vD?M~bF=xlkEJ@+Y5XUYxD#Z2dps@{6SsU7izmlDHGE!v)KWd{WY$+{;uwnKeTli)yD6XX%Gh"
    "Q8vw`ho!#k$OBX@BOVjo5|u@C*cYV2jc#?OkdSJ|kWQFBn=!6QFHU4%6UQ2Y5~FKUmnGqK^uE;@_Xx+<~F&&2b70COH|q"
    "AZVnDbC_u&ujK$J?y@jiP5QhY(qFDlO19FfG!)K9-k5S1MDbEXKWoGEki>sOO{+@x%^-"
    "sVZX#9jQyPG>Q5ud^>=r@#`yZ*<@IU*u-"
    "?lL;_d4Xx>6Y1&ElKTB>VV9c)Lez@v@Q8*@^M#*(YwWUD_hF1>+ZWwsT?&ucO<>xf|OtGtKWzOil5#e`mWWQBibJ3{gx`"
    "EKxc{=@g|)ly31<(RS1*s*Y-)ny40P2Wls37b>g{tHbKBI;;+>!|Jd)tPZQg8n6be0c*e-um-FFYrq<?2CNBd!kVxqtO;"
    "wvny@CU32VYyuokQZYr$Hu7OVwp!CJ6ZH}5=VUulEVl{O1kpiEx3umF}rxDEyR;k)t1^|M1`BeBP@W;b7x_#Ip$4mpdnr"
    "-k6yk1hSEVoM`L6Y3s3YYCQ%QFHl4g5TDT<k7<Yd-"
    "0fOu(g)w7#QEh>Kx1Ue0ks1hfaj|{Sa&5%g2^on#(<QE_RqzG9TZ24gdDCX02I!@sJoF#uB$0U9T^o7X9to?R5od-"
    "{UmV2(X*tYISSAVc!$)j&|#wi{2~yo}1ru({pKx=d$N6;@$a}6=GjQ?5#HOn`CQQ;$3$`yA;|5?ICR+r{1X0FI0);)LYu"
    "E&~E5d(r)O}y3nT@<m?oMPJvD%odUhy6#815ob6F)544xG2l}cdba98AovP5O&_2?s&`)&=y`oRfPE+VK=ycL)&>7uA&k"
    "f4iUWN8TXOQ+nztki2o6F^FpF;bfGfDfPoBD)4KP+dbD|9+^7U^{8ll?-"
    "cu9mYi6gmUiPdWp7WlZRv^>TKmLT5q;NM}NSzX)gQsGOap&{@zy(pk`xgF;^(m9zZ{?S~GL_Cx=<Sm^A><?Mh$2cWY_2c"
    "Vx_iq}0YX9pEJ2%SSZ2wk#F=<Ty|c1WQ^(7B{Tc7HENhtA2_*$SNvoku#`?(Y>sf3aK6&Qa(b=zP*Sc7LxF`q%w(cCJF_"
    "LKl$EwflQW=-LBvcAi4#K^KzFv-^8k=rsrB?0kjJhb|(WZ}<0z(0dNa*#!z+09{PF!0zu=Lcjm2oL#8Uh0rCW3+?`X7-"
    "#BHIlD-qi=azM7uo&2TIh|h%h|;WT?}1Dy4ddTH9|l4wwzs}&?V4e(j|6(uf^*=E@zi2bSZQ>=~BDD*9ra82|2q=q068n"
    "q|5C7UXKp_M9vN?bQrpVblC3i4MGooE@zi3bUAb->2kZjHwry-TF#CrbOgGJbj0rOO+vr+t(;w<&=t_tq$}+H9u@lRIXS"
    "yhp(~+lNLSkZy;<n_3vzaqLRUf8lCHA*dyCNek8*akLRUlAk*>D;dn?Y=D{^*?Lf1goldiG*dmDa_U6HeE6}lF>fpo3i-"
    "xEToUzfA%6uJ(&k#wEi-"
    ";;RVzscG43SAG~M7rMY?<t|jZpzsW3f%zROuE4_Uwh8&lCm2Wx)HjCbfaUwcFO0HvYQmT3A&YZlViSiEg)w%D|9n-"
    "8|h}pd@Y<WXSXPH3v@f_7RP*TxKz$=Rp?geDCt(md~L2$&TdoaHfWu6n`6FqtX|G;SLk+VgLJ!NzIMJ<&W<W{6xt*mb<E"
    "e+w8`1JLhH~LY27hj+i%I)hC&<A9i$D%d~H=&KF>{sHlaI7n~wR~o@)6#w-nlf?jmhD=4;0r<?IfH?ttzl-Qk$8U2d1NI"
    "~BSUx`%Y9W4`9^l(V}Ox(m9ObeChkHqb9;cPn%^bRX$%$9!#Ov7Ftb&^^%oq<b9mwO1aHvwIb~7kYqnuVcRU^@DPDpF;O"
    "R$4K`%=4*dA{%<hg;<EwqMEKYxG16IbBu8>2M{*=bawJD`B**_bG<=i7=z9x>?+e5XHVt1PGJK9MX075g?M!@Q#qcR{fd"
    "1~|CjXgF{u#wRJ65qB{NF5#u%&F8-"
    "_Ecn7j*vQGmn;dF6|CY;_rpTc!a0Vut_$C{g_<v`J2sLn)CJCF^v3sEws@5`GxG~f1Ljp{y{FB"
)

# sample.sas7bdat of pyreadstat's own tests (Apache-2.0): mychar, mynum, mydate, and others.
SAS7BDAT = (
    "c-rmN&x@30902h5-"
    "5qr*Nf+i|5Hwie9%|WjmQ5jWMs`zSw}hQTg8f)sO=(9#G+YSUpo0gYA9yJ`bm$KVyhIe49`a^nhrkZip@VcV3{6wFdEa^"
    "G*VAq;ribeDf#-"
    "eZ`<>_eKF>SPGc!@tcKYHQFP$v(o%{UVe01MeL&w)VvbwLdHY%0ko}sugq!2~DaaX<+KU#_kg{asYH}5l9nJhlNZG3F9G"
    "O>Mpta!&pE7eNUC-"
    "+>p_o4jD?_8)f`*fn>XXSREOdm&a)NSLy;PBwkL}`5gfg?vd^6Lji21@In7}+>7FtlOd$$_9OI=W%x#gXB5oXq=5|EslT"
    "3&(%6<xHh>oe=;4000000000000000000000000000000000000000000000000000000000000000000000000000z`x"
    "A-EoUkV<xgDBUi1{ARrT(>8;!8Pw|m^FEWakG-*>&yKiAWp|M*&?|D>6S8{N(<Uk&nK|K8}22l-"
    "=Jeru55n&r#Edh(0p&t6?Pe{7Nb)<yF9Me=8_{Cz%He)Rr(iC;G*ujkHvTQ8f7P9D6F?a`%8oqhR-AIno&T`6_Bk>CIQs"
    "rt^WdiK+wzKpu3Py6EYzm<1oiM@%<Z=G8BbTsG7x0b)Vvu^K|FVf&#l*}{tbN}+w-ScJZocX0Z-"
    "92C9{af?%U48I;Nq&#7C;$Ke000000000000000000000000000000000000000000000000000000000000000000000"
    "00C&NyKju?mz7X}Mt?k1oSHFIcUT<H&vfheanYYu*<9A#?msY;E#QH>kS2Ppl>(}Y@di(nOv({FPme;T2>Ge+5Urty4)D"
    "qVpXRU28jUNxPw;JX1!_nE-qxAiT710Crkt?!jd21(^)pK#Z>P9f*jqE;0TeG#-5#@SX<I+zr7q>peX1qFx*937fi2H-"
    "MQ?``(ax3##_Nfoo*Pj^8;+<K1IE&xR;uFCxMbXXdo*#AOih<EewK7>9+g_X9y>IGJGHavNW)B>x)%(q3lhvfvW~ZkP?}"
    "?%vJ0>PZN8A1M;r+Ee$?7WAvFf&ovC1<$MysRMiQ4SU)UKJ%`h$n2yYAO0Olp$0(8e^^oonsyy|Hpd_j!n0C#d5*bi_A<"
    "ak*ezF4)t!bq>47Eep<b96V<jXJ4E7+da?qC62qc#Bu)>SLzlzM_22T{!$kA1@HF_u1)(5!M=sU`!;`<)^+{DwY`w*J}2"
    "}4v;Fv|&TlzWxf}Os?n+M(KN!TTgSZgH`Fr-H`Hp|kLdQHS)7K9#apqiorSV_>C2Fl(FI)VhN&N}*;&z<"
)
